#include "worker/capi/fork_guard.h"

#include <pthread.h>

#include <atomic>

namespace lodestone::worker {
namespace {

std::atomic<bool> forked{false};

void OnChild() { forked.store(true, std::memory_order_relaxed); }

}  // namespace

void GuardForks() {
  static const int registered = pthread_atfork(nullptr, nullptr, OnChild);
  static_cast<void>(registered);
}

absl::Status CheckNotForked() {
  if (!forked.load(std::memory_order_relaxed)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this process was forked from one that is connected to a cluster, and connections do not survive a fork: use "
      "Lodestone in the parent, start the process by \"spawn\" instead of \"fork\", or connect in the child only");
}

}  // namespace lodestone::worker
