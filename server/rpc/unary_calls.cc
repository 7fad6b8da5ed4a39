#include "server/rpc/unary_calls.h"

#include <algorithm>
#include <vector>

#include "common/base/status.h"
#include "common/rpc/grpc_status.h"
#include "server/rpc/call_memory.h"

namespace lodestone::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kQuiet(20);  // Without a call: then none is likely to be on its way.

absl::Status Ending() {
  return absl::UnavailableError("this ps ends; send the call again, it may be another's by then");
}

}  // namespace

CountedReactor::CountedReactor(CallMemory* memory, size_t bytes) : memory_(memory), bytes_(bytes) {
  if (memory_ != nullptr) memory_->Take(bytes);
}

absl::Status CountedReactor::AddAnswer(size_t bytes) {
  if (memory_ != nullptr) LODESTONE_RETURN_IF_ERROR(memory_->TakeAnswer(bytes, bytes_));
  bytes_ += bytes;
  return absl::OkStatus();
}

void CountedReactor::OnDone() {
  if (memory_ != nullptr) memory_->Give(bytes_);
  delete this;
}

void UnaryCall::End(grpc::ServerUnaryReactor* reactor, const absl::Status& status) {
  calls_->Remove(this);
  reactor->Finish(ToGrpc(status));
}

std::shared_ptr<UnaryCall> UnaryCalls::Begin(grpc::ServerUnaryReactor* reactor) {
  auto call = std::make_shared<UnaryCall>(this, reactor);
  bool draining = false;
  {
    MutexLock lock(&mu_);
    newest_ = steady_clock::now();
    draining = draining_;
    if (!draining) calls_.emplace(call.get(), call);
  }
  if (!draining) return call;
  call->Finish(Ending());
  return nullptr;
}

void UnaryCalls::Remove(UnaryCall* call) {
  MutexLock lock(&mu_);
  calls_.erase(call);
  if (draining_) changed_.NotifyAll();
}

void UnaryCalls::Drain(int64_t grace_ms) {
  const steady_clock::time_point deadline = steady_clock::now() + milliseconds(grace_ms);
  std::vector<std::shared_ptr<UnaryCall>> left;
  {
    MutexLock lock(&mu_);
    draining_ = true;
    while (!calls_.empty() && changed_.WaitUntil(&mu_, deadline)) {
    }
    for (const auto& [call, weak] : calls_) {
      if (auto held = weak.lock(); held != nullptr) left.push_back(std::move(held));
    }
  }
  for (const auto& call : left) call->Finish(Ending());
  MutexLock lock(&mu_);
  for (auto quiet = newest_ + kQuiet; steady_clock::now() < std::min(quiet, deadline); quiet = newest_ + kQuiet) {
    changed_.WaitUntil(&mu_, std::min(quiet, deadline));
  }
}

}  // namespace lodestone::server
