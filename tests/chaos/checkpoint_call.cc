#include "tests/chaos/checkpoint_call.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "proto/admin.grpc.pb.h"

namespace lodestone::chaos {
namespace {

constexpr uint32_t kMessageBytesMax = 1 << 20;
constexpr int kTimeoutSeconds = 60;

}  // namespace

CheckpointCall::CheckpointCall(int port, std::string name)
    : thread_([this, port, name = std::move(name)] {
        const auto stub = v1::Admin::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", port), kMessageBytesMax));
        context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(kTimeoutSeconds));
        v1::CheckpointRequest request;
        request.set_name(name);
        v1::CheckpointResponse response;
        const absl::Status status = FromGrpc(stub->Checkpoint(&context_, request, &response));
        MutexLock lock(&mu_);
        result_ = Annotate(status, "a checkpoint");
        done_ = true;
      }) {}

CheckpointCall::~CheckpointCall() {
  context_.TryCancel();
  thread_.join();
}

bool CheckpointCall::done() const {
  MutexLock lock(&mu_);
  return done_;
}

absl::Status CheckpointCall::Result() const {
  MutexLock lock(&mu_);
  return result_;
}

}  // namespace lodestone::chaos
