#include "server/service.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/wire.h"

namespace lodestone {
namespace {

// A caller whose deadline has passed is not there to hear of what would be done for it.
absl::Status CheckDeadline(const grpc::CallbackServerContext& context) {
  if (context.deadline() > std::chrono::system_clock::now()) return absl::OkStatus();
  return absl::DeadlineExceededError("the call's deadline had passed when it arrived");
}

// What every raw method starts with.
absl::Status Open(const grpc::CallbackServerContext& context, const grpc::ByteBuffer& request,
                  google::protobuf::MessageLite* header, Payload* payload) {
  LODESTONE_RETURN_IF_ERROR(CheckDeadline(context));
  return ParseMessage(request, header, payload);
}

// A PushPull under way.
struct PushPullCall {
  v1::PushPullRequest header;
  Payload push_payload;
  Payload pull_payload;
};

absl::Status SplitPushPull(const Store& store, Payload payload, PushPullCall* call) {
  if (!call->header.push().payload().empty() || !call->header.pull().payload().empty()) {
    return absl::InvalidArgumentError("the payload fields of push and pull must be empty: PushPull has its own");
  }
  LODESTONE_ASSIGN_OR_RETURN(const size_t push_bytes, store.PushPayloadBytes(call->header.push()));
  if (push_bytes > payload.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the push's parts need ", push_bytes, " bytes of payload, and the message has ", payload.size()));
  }
  call->push_payload = payload.Sub(0, push_bytes);
  call->pull_payload = payload.Sub(push_bytes, payload.size() - push_bytes);
  return absl::OkStatus();
}

// One subscriber's stream. Owned by gRPC until OnDone.
class DeltaStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public DeltaSink {
 public:
  // Call once, before the reactor is handed to gRPC.
  void Start(absl::StatusOr<std::shared_ptr<Subscriber>> subscriber) {
    if (!subscriber.ok()) return Finish(subscriber.status());
    subscriber_ = *std::move(subscriber);
    subscriber_->Start();
  }

  void Write(grpc::ByteBuffer message) override {
    message_ = std::move(message);
    StartWrite(&message_);
  }
  void Finish(absl::Status status) override { grpc::ServerWriteReactor<grpc::ByteBuffer>::Finish(ToGrpc(status)); }

  void OnWriteDone(bool ok) override {
    message_.Clear();
    subscriber_->OnWritten(ok);
  }
  void OnCancel() override {
    if (subscriber_ != nullptr) subscriber_->Cancel(absl::CancelledError("the subscriber is gone"));
  }
  void OnDone() override { delete this; }

 private:
  std::shared_ptr<Subscriber> subscriber_;  // Null if it was refused.
  grpc::ByteBuffer message_;                // Being written.
};

}  // namespace

grpc::ServerUnaryReactor* ParameterService::EnsureTables(grpc::CallbackServerContext* context,
                                                         const v1::EnsureTablesRequest* request,
                                                         v1::EnsureTablesResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  absl::Status status = CheckDeadline(*context);
  if (status.ok()) {
    auto result = store_->EnsureTables(*request);
    status = result.status();
    if (result.ok()) *response = *std::move(result);
  }
  response->set_server_incarnation(incarnation_);
  reactor->Finish(ToGrpc(status));
  return reactor;
}

grpc::ServerUnaryReactor* ParameterService::Push(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  v1::PushRequest header;
  Payload payload;
  if (absl::Status status = Open(*context, *request, &header, &payload); !status.ok()) {
    reactor->Finish(ToGrpc(status));
    return reactor;
  }
  store_->Push(std::move(header), std::move(payload), [reactor, response](absl::StatusOr<v1::PushResponse> result) {
    if (result.ok()) *response = BuildMessage(*result, {});
    reactor->Finish(ToGrpc(result.status()));
  });
  return reactor;
}

grpc::ServerUnaryReactor* ParameterService::Pull(grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
                                                 grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  v1::PullRequest header;
  Payload payload;
  if (absl::Status status = Open(*context, *request, &header, &payload); !status.ok()) {
    reactor->Finish(ToGrpc(status));
    return reactor;
  }
  store_->Pull(std::move(header), std::move(payload), [reactor, response](absl::StatusOr<Store::Values> values) {
    if (values.ok()) *response = BuildMessage(values->header, values->payload);
    reactor->Finish(ToGrpc(values.status()));
  });
  return reactor;
}

grpc::ServerUnaryReactor* ParameterService::PushPull(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request, grpc::ByteBuffer* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  auto call = std::make_shared<PushPullCall>();
  Payload payload;
  absl::Status status = Open(*context, *request, &call->header, &payload);
  if (status.ok()) status = SplitPushPull(*store_, std::move(payload), call.get());
  if (!status.ok()) {
    reactor->Finish(ToGrpc(status));
    return reactor;
  }
  const auto pull = [store = store_, reactor, response, call](absl::StatusOr<v1::PushResponse> pushed) {
    if (!pushed.ok()) return reactor->Finish(ToGrpc(pushed.status()));
    store->Pull(std::move(*call->header.mutable_pull()), std::move(call->pull_payload),
                [reactor, response, pushed = *std::move(pushed)](absl::StatusOr<Store::Values> values) {
                  if (!values.ok()) return reactor->Finish(ToGrpc(values.status()));
                  v1::PushPullResponse header;
                  *header.mutable_push() = pushed;
                  *header.mutable_pull() = std::move(values->header);
                  *response = BuildMessage(header, values->payload);
                  reactor->Finish(grpc::Status::OK);
                });
  };
  store_->Push(std::move(*call->header.mutable_push()), std::move(call->push_payload), pull);
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* ParameterService::Subscribe(grpc::CallbackServerContext* context,
                                                                        const grpc::ByteBuffer* request) {
  auto* const stream = new DeltaStream;
  v1::SubscribeRequest header;
  Payload payload;
  if (absl::Status status = Open(*context, *request, &header, &payload); !status.ok()) {
    stream->Finish(std::move(status));
  } else {
    stream->Start(broadcaster_->Add(header, context->peer(), stream));
  }
  return stream;
}

}  // namespace lodestone
