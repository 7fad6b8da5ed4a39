#include "tests/cluster/faulty_proxy.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"

namespace lodestone {
namespace {

constexpr uint32_t kMessageBytesMax = 64 << 20;

}  // namespace

// A call that was passed on.
struct FaultyProxy::Forward {
  std::shared_ptr<worker::FakeCall> call;
  grpc::ClientContext context;
  grpc::ByteBuffer answer;
};

FaultyProxy::FaultyProxy(std::string target, Faults faults)
    : channel_(MakeChannel(target, kMessageBytesMax)),
      faults_(std::move(faults)),
      server_(std::make_unique<worker::FakeServer>(
          [this](std::shared_ptr<worker::FakeCall> call) { Handle(std::move(call)); })) {}

FaultyProxy::~FaultyProxy() {
  server_.reset();
  AwaitIdle();
}

void FaultyProxy::AwaitIdle() {
  MutexLock lock(&mu_);
  while (under_way_ > 0) idle_.Wait(&mu_);
}

void FaultyProxy::Handle(std::shared_ptr<worker::FakeCall> call) {
  Fault fault = Fault::kNone;
  if (call->method() == "Push") {
    MutexLock lock(&mu_);
    fault = faults_(++pushes_);
  }
  switch (fault) {
    case Fault::kRefuse:
      call->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "refused by the proxy"));
      return;
    case Fault::kRepeat:
      PassOn(call, true);
      PassOn(call, true);
      return;
    case Fault::kDropReply:
      PassOn(std::move(call), false);
      return;
    case Fault::kNone:
      PassOn(std::move(call), true);
  }
}

void FaultyProxy::PassOn(std::shared_ptr<worker::FakeCall> call, bool answer) {
  {
    MutexLock lock(&mu_);
    ++under_way_;
  }
  auto forward = std::make_shared<Forward>();
  forward->call = std::move(call);
  forward->context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  forward->context.set_wait_for_ready(true);
  grpc::GenericStub(channel_).UnaryCall(
      &forward->context, absl::StrCat("/lodestone.v1.ParameterServer/", forward->call->method()), grpc::StubOptions(),
      &forward->call->request(), &forward->answer, [this, answer, forward](grpc::Status status) mutable {
        if (!status.ok()) {
          forward->call->Finish(status);
        } else if (answer) {
          forward->call->Reply(forward->answer);
        } else {
          forward->call->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "reply dropped by the proxy"));
        }
        forward.reset();  // And with it the channel's last use.
        MutexLock lock(&mu_);
        if (--under_way_ == 0) idle_.NotifyAll();
      });
}

}  // namespace lodestone
