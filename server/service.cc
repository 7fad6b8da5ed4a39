#include "server/service.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "common/status.h"
#include "common/wire.h"
#include "server/calls.h"

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

// One subscriber's stream. Owned by gRPC until OnDone.
class DeltaStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>, public DeltaSink {
 public:
  // Call once, before the reactor is handed to gRPC.
  void Start(absl::StatusOr<std::shared_ptr<Subscriber>> subscriber) {
    if (!subscriber.ok()) return Finish(subscriber.status());
    subscriber_ = *std::move(subscriber);
    subscriber_->Start();
  }

  void Write(v1::Delta delta, std::vector<grpc::Slice> payload) override {
    message_ = BuildMessage(delta, payload);
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
    auto result = RunEnsureTables(store_, incarnation_, *request);
    status = result.status();
    if (result.ok()) *response = *std::move(result);
  }
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
  v1::PushPullRequest header;
  Payload payload;
  if (absl::Status status = Open(*context, *request, &header, &payload); !status.ok()) {
    reactor->Finish(ToGrpc(status));
    return reactor;
  }
  RunPushPull(store_, std::move(header), std::move(payload),
              [reactor, response](absl::StatusOr<PushPullValues> values) {
                if (values.ok()) *response = BuildMessage(values->header, values->payload);
                reactor->Finish(ToGrpc(values.status()));
              });
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
