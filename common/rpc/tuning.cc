#include "common/rpc/tuning.h"

#include <malloc.h>

#include <algorithm>
#include <memory>

#include "absl/synchronization/mutex.h"
#include "common/base/mutex.h"
#include "common/io/machine_limits.h"
#include "common/rpc/callback_threads.h"
#include "grpc/grpc.h"
#include "grpc/support/time.h"
#include "grpcpp/completion_queue.h"

namespace lodestone {
namespace {

constexpr size_t kPollersMax = 16;
constexpr int64_t kCallbackStuckMs = 10;

CallbackThreads::Callback NextCallback(grpc_completion_queue* queue) {
  const grpc_event event = grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), nullptr);
  if (event.type != GRPC_OP_COMPLETE) return nullptr;
  auto* const functor = static_cast<grpc_completion_queue_functor*>(event.tag);
  return [functor, success = event.success] { functor->functor_run(functor, success); };
}

// The queue of gRPC's callbacks, which lives as long as it is used.
class CallbackQueue {
 public:
  grpc::CompletionQueue* Use() {
    MutexLock lock(&mu_);
    if (users_++ == 0) {
      queue_ = std::make_unique<grpc::CompletionQueue>();
      const size_t pollers = std::clamp<size_t>(MachineCores() / 2, 1, kPollersMax);
      threads_ = std::make_unique<CallbackThreads>([queue = queue_->cq()] { return NextCallback(queue); }, pollers,
                                                   kCallbackStuckMs);
    }
    return queue_.get();
  }
  void Release() {
    MutexLock lock(&mu_);
    if (--users_ > 0) return;
    queue_->Shutdown();
    threads_.reset();
    queue_.reset();
  }
  bool busy() {
    MutexLock lock(&mu_);
    return threads_ != nullptr && threads_->busy();
  }

 private:
  Mutex mu_;
  size_t users_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<grpc::CompletionQueue> queue_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<CallbackThreads> threads_ ABSL_GUARDED_BY(mu_);
};

CallbackQueue& Callbacks() {
  static CallbackQueue& callbacks = *new CallbackQueue;
  return callbacks;
}

}  // namespace

void TuneLibraries() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  mallopt(M_TOP_PAD, 16 << 20);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

bool CallbackThreadsAreBusy() { return Callbacks().busy(); }

}  // namespace lodestone

namespace grpc {

// These take the place of the library's own, as a program's functions do. If a gRPC has them no more, this does not
// compile.
CompletionQueue* CompletionQueue::CallbackAlternativeCQ() { return lodestone::Callbacks().Use(); }
void CompletionQueue::ReleaseCallbackAlternativeCQ(CompletionQueue*) { lodestone::Callbacks().Release(); }

}  // namespace grpc
