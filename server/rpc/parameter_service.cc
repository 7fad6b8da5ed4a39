#include "server/rpc/parameter_service.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "common/telemetry/log.h"
#include "common/wire/message.h"
#include "server/auth/revocable.h"
#include "server/rpc/broadcaster.h"
#include "server/rpc/delta_sink.h"
#include "server/rpc/exchange.h"
#include "server/rpc/push_pull.h"
#include "server/rpc/subscriber.h"
#include "server/rpc/unread_write.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

// Work for a caller whose deadline has passed would be wasted.
absl::Status CheckDeadline(const grpc::CallbackServerContext& context) {
  if (context.deadline() > std::chrono::system_clock::now()) return absl::OkStatus();
  return absl::DeadlineExceededError("the call arrived after its deadline; retry with a longer one");
}

// The beginning of every raw method.
absl::Status Open(const grpc::CallbackServerContext& context, const grpc::ByteBuffer& request,
                  google::protobuf::MessageLite* header, Payload* payload) {
  LODESTONE_RETURN_IF_ERROR(CheckDeadline(context));
  return ParseMessage(request, header, payload, SIZE_MAX, kCallHeaderBytesMax);
}

// Finishes a call after `hold_ms`; `fill` writes its response. Also when the service is gone.
void Finish(Access* access, const std::shared_ptr<UnaryCall>& call, const absl::Status& status, int64_t hold_ms,
            std::function<void()> fill) {
  if (hold_ms == 0) return call->Finish(status, fill);
  access->timer()->After(hold_ms, [call, status, fill = std::move(fill)] { call->Finish(status, fill); });
}

// Counts the bytes of a call's answer, unless the call is finished already.
absl::Status AddAnswer(size_t bytes, UnaryCall* call, CountedReactor* reactor) {
  absl::Status room;
  call->With([&] { room = reactor->AddAnswer(bytes); });
  return room;
}

// The stream of one unary Subscribe. Owned by gRPC until OnDone.
class DeltaStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public DeltaSink {
 public:
  explicit DeltaStream(grpc::CallbackServerContext* context) : context_(context) {}

  // Ends the subscription when its caller loses the right to it.
  class Ender final : public Revocable {
   public:
    explicit Ender(std::shared_ptr<Subscriber> subscriber) : subscriber_(std::move(subscriber)) {}
    void Revoke(const absl::Status& why) override { subscriber_->Cancel(why); }

   private:
    const std::shared_ptr<Subscriber> subscriber_;
  };

  // Starts the subscription, or finishes with its error. Call once, before the reactor is handed to gRPC. The Ender
  // lives as long as the stream; null after an error.
  std::weak_ptr<Ender> Start(absl::StatusOr<std::shared_ptr<Subscriber>> subscriber) {
    if (!subscriber.ok()) {
      Finish(subscriber.status());
      return {};
    }
    subscriber_ = *std::move(subscriber);
    ender_ = std::make_shared<Ender>(subscriber_);
    const std::weak_ptr<Ender> ender = ender_;
    subscriber_->Start();
    return ender;
  }

  void Write(v1::Delta delta, std::vector<grpc::Slice> payload) override {
    message_ = BuildMessage(delta, payload);
    ++writes_;
    writing_bytes_ = message_.Length();
    StartWrite(&message_);
  }
  void EndIfUnread(int64_t now_ms) override {
    if (!unread_.Look(now_ms, writes_, writing_bytes_) || std::exchange(is_cut_, true)) return;
    LODESTONE_LOG(WARN, "rpc",
                  "a stream ends: its broadcasts are not read while others wait for memory peer={} bytes={} ms={}",
                  context_->peer(), writing_bytes_.load(), unread_.unread_ms());
    context_->TryCancel();  // No status would reach a client that does not read.
  }
  void Finish(absl::Status status) override { grpc::ServerWriteReactor<grpc::ByteBuffer>::Finish(ToGrpc(status)); }

  void OnWriteDone(bool ok) override {
    message_.Clear();
    writing_bytes_ = 0;
    subscriber_->OnWritten(ok);
  }
  void OnCancel() override {
    if (subscriber_ != nullptr) subscriber_->Cancel(absl::CancelledError("the subscriber has disconnected"));
  }
  void OnDone() override { delete this; }

 private:
  std::shared_ptr<Subscriber> subscriber_;  // Null if it was refused.
  std::shared_ptr<Ender> ender_;
  grpc::CallbackServerContext* const context_;  // gRPC's, until OnDone.
  grpc::ByteBuffer message_;                    // Being written.
  std::atomic<uint64_t> writes_{0};
  std::atomic<size_t> writing_bytes_{0};  // Of the write under way.
  UnreadWrite unread_;                    // EndIfUnread's,
  bool is_cut_ = false;                   // as this.
};

}  // namespace

absl::StatusOr<std::shared_ptr<Caller>> ParameterService::CallerOf(const grpc::CallbackServerContext& context) const {
  if (access_ == nullptr) return nullptr;
  return access_->Identify(CallOf(context));
}

grpc::ServerUnaryReactor* ParameterService::EnsureTables(grpc::CallbackServerContext* context,
                                                         const v1::EnsureTablesRequest* request,
                                                         v1::EnsureTablesResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const std::shared_ptr<UnaryCall> call = unary_calls_.Begin(reactor);
  if (call == nullptr) return reactor;
  v1::EnsureTablesRequest checked = *request;
  const auto check = [&]() -> absl::Status {
    LODESTONE_RETURN_IF_ERROR(CheckDeadline(*context));
    LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<Caller> caller, CallerOf(*context));
    if (caller == nullptr) return absl::OkStatus();
    if (!caller->MayChangeTables(checked)) checked.set_keep_settings(true);
    return caller->CheckEnsureTables(checked);
  };
  if (const absl::Status status = check(); !status.ok()) {
    call->Finish(status);
    return reactor;
  }
  RunEnsureTables(store_, incarnation_, std::move(checked),
                  [call, response](absl::StatusOr<v1::EnsureTablesResponse> result) {
                    call->Finish(result.status(), [&] {
                      if (result.ok()) response->Swap(&*result);
                    });
                  });
  return reactor;
}

grpc::ServerUnaryReactor* ParameterService::Push(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  auto* const reactor = new CountedReactor(memory_, request->Length());
  const std::shared_ptr<UnaryCall> call = unary_calls_.Begin(reactor);
  if (call == nullptr) return reactor;
  v1::PushRequest header;
  Payload payload;
  const auto open = [&]() -> absl::StatusOr<int64_t> {
    LODESTONE_RETURN_IF_ERROR(Open(*context, *request, &header, &payload));
    LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<Caller> caller, CallerOf(*context));
    return caller == nullptr ? 0 : caller->CheckPush(header, payload.size());
  };
  const absl::StatusOr<int64_t> hold_ms = open();
  if (!hold_ms.ok()) {
    call->Finish(hold_ms.status());
    return reactor;
  }
  store_->pushes().Push(
      std::move(header), std::move(payload),
      [access = access_, call, response, hold_ms = *hold_ms](absl::StatusOr<v1::PushResponse> result) {
        Finish(access, call, result.status(), hold_ms, [response, result] {
          if (result.ok()) *response = BuildMessage(*result, {});
        });
      });
  return reactor;
}

grpc::ServerUnaryReactor* ParameterService::Pull(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  auto* const reactor = new CountedReactor(memory_, request->Length());
  const std::shared_ptr<UnaryCall> call = unary_calls_.Begin(reactor);
  if (call == nullptr) return reactor;
  v1::PullRequest header;
  Payload payload;
  const auto open = [&]() -> absl::Status {
    LODESTONE_RETURN_IF_ERROR(Open(*context, *request, &header, &payload));
    LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<Caller> caller, CallerOf(*context));
    return caller == nullptr ? absl::OkStatus() : caller->CheckPull(header);
  };
  if (const absl::Status status = open(); !status.ok()) {
    call->Finish(status);
    return reactor;
  }
  auto checked = store_->pulls().Check(std::move(header), std::move(payload));
  if (!checked.ok()) {
    call->Finish(checked.status());
    return reactor;
  }
  // Refused at once: calls that waited for room with their requests in memory could hold each other up for ever.
  if (const absl::Status room = AddAnswer(PullPath::AnswerBytes(**checked), call.get(), reactor); !room.ok()) {
    call->Finish(room);
    return reactor;
  }
  store_->pulls().Read(*std::move(checked), [call, response](absl::StatusOr<PullPath::Values> values) {
    call->Finish(values.status(), [&] {
      if (values.ok()) *response = BuildMessage(values->header, values->payload);
    });
  });
  return reactor;
}

grpc::ServerUnaryReactor* ParameterService::PushPull(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  auto* const reactor = new CountedReactor(memory_, request->Length());
  const std::shared_ptr<UnaryCall> call = unary_calls_.Begin(reactor);
  if (call == nullptr) return reactor;
  v1::PushPullRequest header;
  Payload payload;
  const auto open = [&]() -> absl::StatusOr<int64_t> {
    LODESTONE_RETURN_IF_ERROR(Open(*context, *request, &header, &payload));
    LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<Caller> caller, CallerOf(*context));
    return caller == nullptr ? 0 : caller->CheckPushPull(header, payload.size());
  };
  const absl::StatusOr<int64_t> hold_ms = open();
  if (!hold_ms.ok()) {
    call->Finish(hold_ms.status());
    return reactor;
  }
  const auto done = [access = access_, call, response, hold_ms = *hold_ms](absl::StatusOr<PushPullValues> values) {
    Finish(access, call, values.status(), hold_ms, [response, values] {
      if (values.ok()) *response = BuildMessage(values->header, values->payload);
    });
  };
  const auto run = [&]() -> absl::Status {
    LODESTONE_ASSIGN_OR_RETURN(const auto checked, CheckPushPull(store_, std::move(header), std::move(payload)));
    LODESTONE_RETURN_IF_ERROR(AddAnswer(PushPullAnswerBytes(*checked), call.get(), reactor));
    RunPushPull(store_, checked, done);
    return absl::OkStatus();
  };
  if (const absl::Status status = run(); !status.ok()) done(status);
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* ParameterService::Subscribe(grpc::CallbackServerContext* context,
                                                                        const grpc::ByteBuffer* request) {
  auto* const stream = new DeltaStream(context);
  v1::SubscribeRequest header;
  Payload payload;
  std::shared_ptr<Caller> caller;
  const auto open = [&]() -> absl::Status {
    LODESTONE_RETURN_IF_ERROR(Open(*context, *request, &header, &payload));
    LODESTONE_ASSIGN_OR_RETURN(caller, CallerOf(*context));
    return caller == nullptr ? absl::OkStatus() : caller->CheckSubscribe(header);
  };
  if (absl::Status status = open(); !status.ok()) {
    stream->Finish(std::move(status));
    return stream;
  }
  std::weak_ptr<Revocable> ender = stream->Start(broadcaster_->Add(header, context->peer(), stream));
  if (caller != nullptr && !ender.expired()) access_->Watch(caller, std::move(ender));
  return stream;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* ParameterService::Exchange(
    grpc::CallbackServerContext* context) {
  return exchange_->Open(context);
}

}  // namespace lodestone::server
