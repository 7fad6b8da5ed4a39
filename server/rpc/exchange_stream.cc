#include "server/rpc/exchange_stream.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "common/telemetry/log.h"
#include "server/rpc/broadcaster.h"
#include "server/rpc/delta_sink.h"
#include "server/rpc/push_pull.h"
#include "server/rpc/subscriber.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

// The tag of an answer, which nothing waits for. The tags of deltas are their calls' ids.
constexpr uint64_t kNoTag = UINT64_MAX;

// After a message of so many bytes at most, the next is read when its calls have been run. Then the answers that they
// got at once are written before, and carry what flow control has to say; otherwise gRPC 1.51 sends that in a packet of
// its own, which wakes the client (worker/rpc/connection.cc). After a larger one the next is received meanwhile.
constexpr size_t kReadAfterCallsBytesMax = 48 << 10;

// The stream whose message this thread runs. The answers that its calls get at once go out together.
thread_local const ExchangeStream* running = nullptr;

absl::Status Disconnected() { return absl::CancelledError("the client has disconnected"); }

}  // namespace

// The writer of one subscription's deltas.
class ExchangeStream::DeltaWriter final : public DeltaSink {
 public:
  DeltaWriter(std::shared_ptr<ExchangeStream> stream, uint64_t id) : stream_(std::move(stream)), id_(id) {}

  void Write(v1::Delta delta, std::vector<grpc::Slice> payload) override {
    stream_->SendDelta(id_, std::move(delta), std::move(payload));
  }
  void EndIfUnread(int64_t now_ms) override { stream_->EndIfUnread(now_ms, /*deltas=*/true); }
  void Finish(absl::Status status) override { stream_->EndSubscription(id_, status); }

  std::shared_ptr<Subscriber> subscriber;  // Null until the Broadcaster has made it; set before the first Write.

 private:
  const std::shared_ptr<ExchangeStream> stream_;
  const uint64_t id_;
};

// One step of the stream's state: holds the mutex, and on destruction starts the operations that have become possible.
class ABSL_SCOPED_LOCKABLE ExchangeStream::Step {
 public:
  explicit Step(ExchangeStream* stream) ABSL_EXCLUSIVE_LOCK_FUNCTION(stream->mu_) : stream_(stream) {
    stream_->mu_.Lock();
  }
  ~Step() ABSL_UNLOCK_FUNCTION() {
    const bool may_read = stream_->budget_.MayRead();
    const ExchangeFlow::Actions actions =
        stream_->flow_.Next(hold_, may_read, &stream_->outgoing_, &stream_->written_tags_);
    const StreamBudget::Run alone = stream_->budget_.TakeAlone();
    CallMemory* const memory = stream_->services_.memory;
    const StreamBudget::Settlement settlement = stream_->budget_.Count();
    if (actions.finish.has_value()) stream_->Finish(ToGrpc(*actions.finish));
    ExchangeStream* const stream = stream_;
    stream->mu_.Unlock();
    // Both take time: gRPC may work for other streams in a read, and a write usually sends at once. The stream does not
    // end before it has been read from and the write is done.
    if (actions.write) stream->StartWrite(&stream->outgoing_);
    if (actions.read) stream->Read();
    // From here on the stream may be gone.
    StreamBudget::Settle(settlement, memory);
    if (alone != nullptr) alone(absl::OkStatus());
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  // Small answers are not written yet: a message's calls are being run, and they go out after these.
  void Hold() { hold_ = true; }

 private:
  ExchangeStream* const stream_;
  bool hold_ = false;
};

ExchangeStream::ExchangeStream(Services services, grpc::CallbackServerContext* context, std::shared_ptr<Caller> caller)
    : services_(std::move(services)),
      context_(context),
      peer_(context->peer()),
      caller_(std::move(caller)),
      reader_(peer_, services_.key_list_pool, services_.shared_use) {}

void ExchangeStream::Start(const absl::Status& end) {
  self_ = shared_from_this();
  Step step(this);
  budget_.Start([weak = weak_from_this(), memory = services_.memory](StreamBudget::Turn turn, size_t bytes) {
    const auto stream = weak.lock();
    if (stream == nullptr) return StreamBudget::GiveBack(turn, bytes, memory);
    stream->OnTurn(turn, bytes);
  });
  if (!end.ok()) flow_.End(end);
}

void ExchangeStream::Read() {
  StartRead(&incoming_);
  MutexLock lock(&mu_);
  if (const auto finish = flow_.OnReadStarted(); finish.has_value()) Finish(ToGrpc(*finish));
}

void ExchangeStream::OnTurn(StreamBudget::Turn turn, size_t bytes) {
  StreamBudget::Run run;
  {
    Step step(this);
    if (messages_ > 0) step.Hold();
    run = budget_.OnTurn(turn, bytes);
  }
  if (run != nullptr) run(absl::OkStatus());
}

void ExchangeStream::End(const absl::Status& status) {
  {
    Step step(this);
    flow_.End(status);
  }
  CancelSubscriptions(status);
}

void ExchangeStream::Revoke(const absl::Status& why) {
  {
    MutexLock lock(&mu_);
    // The second time: the client does not take its answers.
    if (std::exchange(revoked_, true) && !done_) context_->TryCancel();
  }
  End(why);
}

void ExchangeStream::EndIfUnread(int64_t now_ms, bool deltas) {
  MutexLock lock(&mu_);
  const bool unread = unread_.Look(now_ms, flow_.packed(), flow_.writing_bytes());
  if (!unread || (!deltas && flow_.answer_bytes() == 0)) return;
  if (done_ || std::exchange(revoked_, true)) return;
  LODESTONE_LOG(WARN, "rpc", "a stream ends: its {} are not read while others wait for memory peer={} bytes={} ms={}",
                deltas ? "broadcasts" : "answers", peer_, flow_.writing_bytes(), unread_.unread_ms());
  context_->TryCancel();  // No status would reach a client that does not read.
}

void ExchangeStream::OnReadDone(bool ok) {
  if (!ok) {
    {
      Step step(this);
      budget_.OnRead(0);
      flow_.OnRead();
      flow_.OnReadClosed();
    }
    return CancelSubscriptions(Disconnected());
  }
  const grpc::ByteBuffer message = std::exchange(incoming_, {});
  RunMessage(message);
}

void ExchangeStream::OnWriteDone(bool ok) {
  std::vector<std::shared_ptr<Subscriber>> subscribers;
  std::vector<StreamBudget::Run> waiting;
  {
    Step step(this);
    if (messages_ > 0) step.Hold();
    outgoing_.Clear();
    flow_.OnWritten(ok, &written_tags_);
    if (!ok) waiting = budget_.Close();
    for (const uint64_t tag : written_tags_) {
      const auto found = tag == kNoTag ? subscriptions_.end() : subscriptions_.find(tag);
      if (found != subscriptions_.end()) subscribers.push_back(found->second->subscriber);
    }
  }
  for (const auto& run : waiting) run(Disconnected());
  for (const auto& subscriber : subscribers) subscriber->OnWritten(ok);
}

void ExchangeStream::OnCancel() {
  std::vector<StreamBudget::Run> waiting;
  {
    Step step(this);
    flow_.OnReadClosed();
    waiting = budget_.Close();
  }
  for (const auto& run : waiting) run(Disconnected());
  CancelSubscriptions(Disconnected());
}

void ExchangeStream::OnDone() {
  StreamBudget::Settlement settlement;
  {
    MutexLock lock(&mu_);
    done_ = true;
    settlement = budget_.End();
  }
  StreamBudget::Settle(settlement, services_.memory);
  self_.reset();
}

void ExchangeStream::RunMessage(const grpc::ByteBuffer& message) {
  absl::StatusOr<std::vector<ReceivedCall>> calls = reader_.Read(message);
  const bool reads_later = message.Length() <= kReadAfterCallsBytesMax;
  {
    Step step(this);
    flow_.OnRead();
    if (reads_later && calls.ok()) flow_.Suspend();
    budget_.OnRead(message.Length());
    if (!calls.ok()) {
      flow_.End(calls.status());
    } else {
      ++messages_;
      size_t bytes = 0;
      for (const ReceivedCall& received : *calls) bytes += received.route.request_bytes();
      flow_.AddCalls(calls->size(), bytes);
    }
  }
  if (!calls.ok()) return CancelSubscriptions(calls.status());
  const ExchangeStream* const outer = std::exchange(running, this);
  for (ReceivedCall& received : *calls) RunCall(std::move(received));
  running = outer;
  Step step(this);
  if (reads_later) flow_.Resume();
  --messages_;
}

template <typename Fill>
auto ExchangeStream::AnswerWith(const AnswerRoute& route, Fill fill, size_t expected_bytes) {
  return [self = shared_from_this(), route, fill, expected_bytes](auto result) {
    if (!result.ok()) return self->AnswerError(route, result.status(), expected_bytes);
    v1::Answer answer;
    std::vector<grpc::Slice> values;
    fill(&*result, &answer, &values);
    self->Answer(route, std::move(answer), std::move(values), expected_bytes);
  };
}

void ExchangeStream::RunCall(ReceivedCall received) {
  v1::Call& call = received.call;
  const AnswerRoute& route = received.route;
  if (!received.payload.ok()) return AnswerError(route, received.payload.status());
  if (caller_ != nullptr) {
    if (const absl::Status status = CheckCall(call, route.request_bytes()); !status.ok()) {
      return AnswerError(route, status);
    }
  }
  switch (call.request_case()) {
    case v1::Call::kPush:
      services_.store->pushes().Push(
          std::move(*call.mutable_push()), *std::move(received.payload),
          AnswerWith(route, [](v1::PushResponse* result, v1::Answer* out, std::vector<grpc::Slice>*) {
            out->mutable_push()->Swap(result);
          }));
      return;
    case v1::Call::kPull:
      return RunPull(route, std::move(*call.mutable_pull()), *std::move(received.payload));
    case v1::Call::kPushPull:
      return RunPushPull(route, std::move(*call.mutable_push_pull()), *std::move(received.payload));
    case v1::Call::kEnsureTables:
      if (caller_ != nullptr && !caller_->MayChangeTables(call.ensure_tables())) {
        call.mutable_ensure_tables()->set_keep_settings(true);
      }
      RunEnsureTables(services_.store, services_.incarnation, std::move(*call.mutable_ensure_tables()),
                      AnswerWith(route, [](v1::EnsureTablesResponse* result, v1::Answer* out,
                                           std::vector<grpc::Slice>*) { out->mutable_ensure_tables()->Swap(result); }));
      return;
    case v1::Call::kSubscribe:
      if (route.request_bytes() > 0) {
        return AnswerError(route, absl::InvalidArgumentError("a subscription must not have a payload"));
      }
      RunSubscribe(route, call.subscribe());
      return;
    case v1::Call::REQUEST_NOT_SET:
      break;
  }
  AnswerError(route, absl::UnimplementedError(
                         "the call has no request that this ps knows; use a ps that is as new as the client"));
}

template <typename Run>
void ExchangeStream::RunWithRoom(size_t bytes, Run run) {
  bool has_room = false, waits = false;
  {
    MutexLock lock(&mu_);
    has_room = budget_.Admit(bytes);
    waits = !has_room && budget_.Await(bytes, run);
  }
  if (waits) return StreamBudget::Settle({.asked = true}, services_.memory);
  run(has_room ? absl::OkStatus() : Disconnected());
}

void ExchangeStream::RunPull(const AnswerRoute& route, v1::PullRequest request, RequestPayload payload) {
  auto checked = services_.store->pulls().Check(std::move(request), std::move(payload));
  if (!checked.ok()) return AnswerError(route, checked.status());
  const size_t bytes = PullPath::AnswerBytes(**checked);
  RunWithRoom(bytes, [self = shared_from_this(), route, call = *std::move(checked), bytes](const absl::Status& room) {
    if (!room.ok()) return self->AnswerError(route, room);
    const auto fill = [](PullPath::Values* result, v1::Answer* out, std::vector<grpc::Slice>* values) {
      out->mutable_pull()->Swap(&result->header);
      values->swap(result->payload);
    };
    self->services_.store->pulls().Read(call, self->AnswerWith(route, fill, bytes));
  });
}

void ExchangeStream::RunPushPull(const AnswerRoute& route, v1::PushPullRequest request, RequestPayload payload) {
  auto checked = CheckPushPull(services_.store, std::move(request), std::move(payload));
  if (!checked.ok()) return AnswerError(route, checked.status());
  const size_t bytes = PushPullAnswerBytes(**checked);
  RunPushOf(services_.store, *checked, [self = shared_from_this(), route, call = *checked, bytes](const auto& pushed) {
    if (!pushed.ok()) return self->AnswerError(route, pushed);
    self->RunWithRoom(bytes, [self, route, call, bytes](const absl::Status& room) {
      if (!room.ok()) return self->AnswerError(route, room);
      const auto fill = [](PushPullValues* result, v1::Answer* out, std::vector<grpc::Slice>* values) {
        out->mutable_push_pull()->Swap(&result->header);
        values->swap(result->payload);
      };
      RunPullOf(self->services_.store, call, self->AnswerWith(route, fill, bytes));
    });
  });
}

absl::Status ExchangeStream::CheckCall(const v1::Call& call, size_t request_bytes) {
  LODESTONE_ASSIGN_OR_RETURN(const int64_t hold_ms, caller_->Check(call, request_bytes));
  if (hold_ms == 0) return absl::OkStatus();
  {
    MutexLock lock(&mu_);
    flow_.Suspend();
  }
  services_.timer->After(hold_ms, [weak = weak_from_this()] {
    const auto stream = weak.lock();
    if (stream == nullptr) return;
    Step step(stream.get());
    stream->flow_.Resume();
  });
  return absl::OkStatus();
}

void ExchangeStream::RunSubscribe(const AnswerRoute& route, const v1::SubscribeRequest& request) {
  const uint64_t id = route.id();
  const auto writer = std::make_shared<DeltaWriter>(shared_from_this(), id);
  bool taken = id == kNoTag;
  {
    // The id is taken first, because the next message's calls may run at the same time.
    MutexLock lock(&mu_);
    taken = taken || !subscriptions_.try_emplace(id, writer).second;
  }
  if (taken) {
    return AnswerError(route, absl::InvalidArgumentError(
                                  absl::StrCat("the call's id ", id, " is taken; use another for the subscription")));
  }
  auto subscriber = services_.broadcaster->Add(request, peer_, writer.get());
  if (!subscriber.ok()) {
    {
      MutexLock lock(&mu_);
      subscriptions_.erase(id);
    }
    return AnswerError(route, subscriber.status());
  }
  bool gone = false;
  {
    MutexLock lock(&mu_);
    writer->subscriber = *std::move(subscriber);
    flow_.BeginSubscription();
    gone = flow_.ending();
  }
  if (gone) writer->subscriber->Cancel(absl::CancelledError("the subscription's stream has ended"));
  writer->subscriber->Start();
}

void ExchangeStream::SendDelta(uint64_t id, v1::Delta delta, std::vector<grpc::Slice> payload) {
  v1::Answer answer;
  answer.set_id(id);
  answer.set_payload_bytes(SizeOf(payload));
  *answer.mutable_delta() = std::move(delta);
  Frame frame(answer, std::move(payload), id);
  std::shared_ptr<DeltaWriter> lost;
  {
    Step step(this);
    if (!flow_.AddDelta(std::move(frame))) lost = subscriptions_.at(id);
  }
  if (lost != nullptr) lost->subscriber->OnWritten(false);
}

void ExchangeStream::EndSubscription(uint64_t id, const absl::Status& status) {
  std::shared_ptr<DeltaWriter> ended;  // Destroyed last: it calls this.
  {
    MutexLock lock(&mu_);
    const auto found = subscriptions_.find(id);
    ended = std::move(found->second);
    subscriptions_.erase(found);
    flow_.EndSubscription();
  }
  AnswerError(AnswerRoute(id),
              status.ok() ? absl::UnavailableError("the subscription has ended; subscribe again") : status);
}

void ExchangeStream::CancelSubscriptions(const absl::Status& status) {
  std::vector<std::shared_ptr<Subscriber>> subscribers;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, writer] : subscriptions_) {
      if (writer->subscriber != nullptr) subscribers.push_back(writer->subscriber);
    }
  }
  for (const auto& subscriber : subscribers) subscriber->Cancel(status);
}

void ExchangeStream::Answer(const AnswerRoute& route, v1::Answer answer, std::vector<grpc::Slice> values,
                            size_t expected_bytes) {
  route.Complete(&answer, &values);
  Frame frame(answer, std::move(values), kNoTag, answer.shared_bytes());
  Step step(this);
  if (running == this) step.Hold();
  flow_.Expect(-static_cast<int64_t>(expected_bytes));
  flow_.AddAnswer(std::move(frame), route.request_bytes());
}

void ExchangeStream::AnswerError(const AnswerRoute& route, const absl::Status& status, size_t expected_bytes) {
  v1::Answer answer;
  answer.set_code(static_cast<uint32_t>(status.code()));
  answer.set_error(std::string(status.message()));
  Answer(route, std::move(answer), {}, expected_bytes);
}

}  // namespace lodestone::server
