#include "server/rpc/exchange.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "server/rpc/exchange_stream.h"
#include "server/rpc/push_pull.h"

namespace lodestone::server {
namespace {

// Tag of an answer that nobody asks about when it was written. Tags of deltas are their calls' ids.
constexpr uint64_t kNoTag = UINT64_MAX;

// The stream whose message this thread takes apart. Its calls' answers, so far as they come at once, go out together.
thread_local const ExchangeStream* running = nullptr;

}  // namespace

// Writes a subscriber's deltas to the stream.
class ExchangeStream::DeltaWriter final : public DeltaSink {
 public:
  DeltaWriter(std::shared_ptr<ExchangeStream> stream, uint64_t id) : stream_(std::move(stream)), id_(id) {}

  void Write(v1::Delta delta, std::vector<grpc::Slice> payload) override {
    stream_->SendDelta(id_, std::move(delta), std::move(payload));
  }
  void Finish(absl::Status status) override { stream_->EndSubscription(id_, status); }

  std::shared_ptr<Subscriber> subscriber;  // Null until the broadcaster has taken it; set before the first Write.

 private:
  const std::shared_ptr<ExchangeStream> stream_;
  const uint64_t id_;
};

void ExchangeStream::Start(const absl::Status& end) {
  self_ = shared_from_this();
  Step step(this);
  if (!end.ok()) end_ = end;
}

bool ExchangeStream::Pump(bool hold) {
  if (finishing_) return false;
  hold &= !outbox_.full();
  const bool write = !writing_ && !broken_ && !outbox_.empty() && !hold;
  if (write) {
    writing_ = true;
    writing_bytes_ = outbox_.bytes();
    outgoing_ = outbox_.Pack(&written_tags_);
    writing_bytes_ -= outbox_.bytes();
  }
  const bool full = calls_ >= limits::kExchangeCallsMax ||
                    call_bytes_ + writing_bytes_ + outbox_.bytes() >= limits::kExchangeBytesMax;
  if (!reading_ && !read_closed_ && !end_.has_value() && !full && holds_ == 0) {
    reading_ = true;
    StartRead(&incoming_);
  }
  const bool idle = calls_ == 0 && subscriptions_.empty() && !writing_ && (broken_ || outbox_.empty());
  if (idle && (read_closed_ || end_.has_value())) {
    finishing_ = true;
    Finish(ToGrpc(end_.value_or(absl::OkStatus())));
  }
  return write;
}

void ExchangeStream::OnReadDone(bool ok) {
  if (!ok) {
    {
      Step step(this);
      reading_ = false;
      read_closed_ = true;
    }
    CancelSubscriptions(absl::CancelledError("the subscriber is gone"));
    return;
  }
  const grpc::ByteBuffer message = std::exchange(incoming_, {});
  RunMessage(message);
}

void ExchangeStream::OnCancel() {
  {
    Step step(this);
    read_closed_ = true;
  }
  CancelSubscriptions(absl::CancelledError("the subscriber is gone"));
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

absl::Status ExchangeStream::ReadCalls(const grpc::ByteBuffer& message, std::vector<Received>* calls) {
  v1::ExchangeRequest header;
  Payload payload;
  LODESTONE_RETURN_IF_ERROR(ParseMessage(message, &header, &payload, limits::kExchangeCallsMax));
  const size_t bytes = payload.size();
  calls->reserve(header.calls_size());
  for (v1::Call& call : *header.mutable_calls()) {
    if (call.payload_bytes() > payload.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the calls' payloads are longer than the message's, which has ", bytes, " bytes"));
    }
    Received& received = calls->emplace_back();
    received.numbers = payload.Take(call.payload_bytes());
    received.call = std::move(call);
  }
  if (payload.size() > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the payload has ", bytes, " bytes, but the calls describe ", bytes - payload.size()));
  }
  // Only of a message that is well-formed. The next one may refer to what this one brings.
  const bool shares = exchange_->shared_use_ && caller_ == nullptr;
  shared_values_.BeginMessage(shares ? exchange_->shared_use_() : SharedUse::kRefused);
  for (Received& received : *calls) FindNumbers(&received);
  return absl::OkStatus();
}

void ExchangeStream::FindNumbers(Received* received) {
  const v1::Call& call = received->call;
  Outcome& outcome = received->outcome;
  outcome.id = call.id();
  if (call.has_shared_memory()) outcome.shared_memory = shared_values_.Accept(call.shared_memory());
  if (call.has_keys()) received->status = key_lists_.Take(call.keys(), &received->numbers, &outcome.keys);
  if (received->status.ok()) received->status = shared_values_.Take(call, &received->numbers);
  if (received->status.ok()) received->status = shared_values_.TakeRoom(call, &received->room);
  outcome.call_bytes = call.payload_bytes() + (received->status.ok() ? shared_values_.CopiedBytes(call) : 0);
}

void ExchangeStream::RunMessage(const grpc::ByteBuffer& message) {
  std::vector<Received> calls;
  const absl::Status status = ReadCalls(message, &calls);
  {
    Step step(this);  // The next message is received while this one's calls run.
    reading_ = false;
    if (!status.ok()) {
      end_ = status;
    } else {
      ++messages_;
      calls_ += calls.size();
      for (const Received& received : calls) call_bytes_ += received.outcome.call_bytes;
    }
  }
  if (!status.ok()) return CancelSubscriptions(status);
  running = this;
  for (Received& received : calls) RunCall(std::move(received));
  Flush();
}

void ExchangeStream::Flush() {
  if (std::exchange(running, nullptr) != this) return;
  Step step(this);
  --messages_;
}

void ExchangeStream::RunCall(Received received) {
  v1::Call& call = received.call;
  RequestPayload& numbers = received.numbers;
  const Outcome& outcome = received.outcome;
  if (!received.status.ok()) return AnswerError(outcome, received.status);
  if (caller_ != nullptr) {
    if (const absl::Status status = CheckCall(call, outcome.call_bytes); !status.ok()) {
      return AnswerError(outcome, status);
    }
  }
  const auto self = shared_from_this();
  // Sends what the store made of a call; `fill` moves the result into the answer and its payload.
  const auto answer = [self, &outcome, &room = received.room](auto fill) {
    return [self, outcome, room, fill](auto result) {
      if (!result.ok()) return self->AnswerError(outcome, result.status());
      v1::Answer answer;
      std::vector<grpc::Slice> values;
      fill(&*result, &answer, &values);
      answer.set_shared_bytes(room.Put(&values));
      self->Answer(outcome, std::move(answer), std::move(values));
    };
  };
  switch (call.request_case()) {
    case v1::Call::kPush:
      exchange_->store_->pushes().Push(std::move(*call.mutable_push()), std::move(numbers),
                                       answer([](v1::PushResponse* result, v1::Answer* out, std::vector<grpc::Slice>*) {
                                         out->mutable_push()->Swap(result);
                                       }));
      return;
    case v1::Call::kPull:
      exchange_->store_->pulls().Pull(
          std::move(*call.mutable_pull()), std::move(numbers),
          answer([](PullPath::Values* result, v1::Answer* out, std::vector<grpc::Slice>* values) {
            out->mutable_pull()->Swap(&result->header);
            values->swap(result->payload);
          }));
      return;
    case v1::Call::kPushPull:
      RunPushPull(exchange_->store_, std::move(*call.mutable_push_pull()), std::move(numbers),
                  answer([](PushPullValues* result, v1::Answer* out, std::vector<grpc::Slice>* values) {
                    out->mutable_push_pull()->Swap(&result->header);
                    values->swap(result->payload);
                  }));
      return;
    case v1::Call::kEnsureTables:
      Flush();  // It may wait for the disk.
      answer([](v1::EnsureTablesResponse* result, v1::Answer* out, std::vector<grpc::Slice>*) {
        out->mutable_ensure_tables()->Swap(result);
      })(RunEnsureTables(exchange_->store_, exchange_->incarnation_, call.ensure_tables()));
      return;
    case v1::Call::kSubscribe:
      if (outcome.call_bytes > 0) {
        return AnswerError(outcome, absl::InvalidArgumentError("a subscription has no payload"));
      }
      RunSubscribe(call.id(), call.subscribe());
      return;
    case v1::Call::REQUEST_NOT_SET:
      break;
  }
  AnswerError(outcome, absl::UnimplementedError("this ps does not know what the call asks for"));
}

void ExchangeStream::RunSubscribe(uint64_t id, const v1::SubscribeRequest& request) {
  const auto writer = std::make_shared<DeltaWriter>(shared_from_this(), id);
  bool taken = id == kNoTag;
  {
    // The id is taken before anything else is done: the next message's calls may run at the same time.
    MutexLock lock(&mu_);
    taken = taken || !subscriptions_.try_emplace(id, writer).second;
  }
  if (taken) {
    return AnswerError({.id = id}, absl::InvalidArgumentError(absl::StrCat("a subscription cannot have the id ", id)));
  }
  auto subscriber = exchange_->broadcaster_->Add(request, peer_, writer.get());
  if (!subscriber.ok()) {
    {
      MutexLock lock(&mu_);
      subscriptions_.erase(id);
    }
    return AnswerError({.id = id}, subscriber.status());
  }
  bool gone = false;
  {
    MutexLock lock(&mu_);
    writer->subscriber = *std::move(subscriber);
    --calls_;
    gone = read_closed_ || end_.has_value();
  }
  if (gone) writer->subscriber->Cancel(absl::CancelledError("the stream of the subscription ends"));
  writer->subscriber->Start();
}

void ExchangeStream::SendDelta(uint64_t id, v1::Delta delta, std::vector<grpc::Slice> payload) {
  v1::Answer answer;
  answer.set_id(id);
  answer.set_payload_bytes(SizeOf(payload));
  *answer.mutable_delta() = std::move(delta);
  Outbox::Item item(answer, std::move(payload), id);
  std::shared_ptr<DeltaWriter> lost;
  {
    Step step(this);
    if (broken_) {
      lost = subscriptions_.at(id);
    } else {
      outbox_.Add(std::move(item));
    }
  }
  if (lost != nullptr) lost->subscriber->OnWritten(false);
}

void ExchangeStream::EndSubscription(uint64_t id, const absl::Status& status) {
  std::shared_ptr<DeltaWriter> ended;  // Destroyed last: it is the caller.
  {
    MutexLock lock(&mu_);
    const auto found = subscriptions_.find(id);
    ended = std::move(found->second);
    subscriptions_.erase(found);
    ++calls_;
  }
  AnswerError({.id = id}, status.ok() ? absl::UnavailableError("the subscription has ended") : status);
}

void ExchangeStream::OnWriteDone(bool ok) {
  std::vector<std::shared_ptr<Subscriber>> subscribers;
  {
    Step step(this);
    if (messages_ > 0) step.Hold();
    writing_ = false;
    writing_bytes_ = 0;
    outgoing_.Clear();
    broken_ |= !ok;
    while (true) {
      for (const uint64_t tag : written_tags_) {
        const auto found = tag == kNoTag ? subscriptions_.end() : subscriptions_.find(tag);
        if (found != subscriptions_.end()) subscribers.push_back(found->second->subscriber);
      }
      // If the stream is broken, what still waits is lost: subscribers whose delta is among it hear of that too.
      if (!broken_ || outbox_.empty()) break;
      outbox_.Pack(&written_tags_);
    }
  }
  for (const auto& subscriber : subscribers) subscriber->OnWritten(ok);
}

void ExchangeStream::Answer(const Outcome& outcome, v1::Answer answer, std::vector<grpc::Slice> payload) {
  answer.set_id(outcome.id);
  answer.set_keys(outcome.keys);
  answer.set_shared_memory(outcome.shared_memory);
  answer.set_payload_bytes(SizeOf(payload));
  Outbox::Item item(answer, std::move(payload), kNoTag, answer.shared_bytes());
  Step step(this);
  if (running == this) step.Hold();
  --calls_;
  call_bytes_ -= outcome.call_bytes;
  if (!broken_) outbox_.Add(std::move(item));
}

void ExchangeStream::AnswerError(const Outcome& outcome, const absl::Status& status) {
  v1::Answer answer;
  answer.set_code(static_cast<uint32_t>(status.code()));
  answer.set_error(std::string(status.message()));
  Answer(outcome, std::move(answer), {});
}

void Exchange::Drain() {
  std::vector<std::weak_ptr<ExchangeStream>> streams;
  {
    MutexLock lock(&mu_);
    draining_ = true;
    streams = streams_;
  }
  for (const auto& known : streams) {
    if (const auto stream = known.lock(); stream != nullptr) stream->End(absl::UnavailableError("the ps shuts down"));
  }
}

}  // namespace lodestone::server
