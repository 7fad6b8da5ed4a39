#include "worker/capi/call.h"

#include <cstring>
#include <utility>

#include "worker/capi/wait_deadline.h"

namespace lodestone::worker {

void Call::Finish(absl::Status status, ShardVersions versions) {
  if (status.ok()) {
    for (const auto& rows : repeated) {
      const size_t dim = rows->dim;
      for (size_t i = 0; i < rows->row.size(); ++i) {
        std::memcpy(rows->destination + i * dim, rows->values.data() + rows->row[i] * dim, dim * sizeof(float));
      }
    }
  }
  repeated.clear();
  keys.clear();
  std::function<void()> on_done;
  {
    MutexLock lock(&mu_);
    versions_ = std::move(versions);
    status_ = std::move(status);
    on_done = std::exchange(on_done_, nullptr);
    running_ = on_done != nullptr;
  }
  // Without the lock, which the waiting thread takes first: woken under it, it would have to sleep once more.
  changed_.NotifyAll();
  if (on_done == nullptr) return;
  on_done();
  {
    MutexLock lock(&mu_);
    running_ = false;
  }
  changed_.NotifyAll();
}

std::optional<absl::Status> Call::Wait(int64_t timeout_ms) {
  const auto deadline = WaitDeadline(timeout_ms);
  MutexLock lock(&mu_);
  while (!status_.has_value()) {
    if (!deadline.has_value()) {
      changed_.Wait(&mu_);
    } else if (!changed_.WaitUntil(&mu_, *deadline) && !status_.has_value()) {
      return std::nullopt;
    }
  }
  return status_;
}

std::span<const Version> Call::versions() const { return versions_; }

absl::Status Call::OnDone(std::function<void()> function) {
  {
    MutexLock lock(&mu_);
    if (has_on_done_) return absl::FailedPreconditionError("the call has a function to call when it is done already");
    has_on_done_ = true;
    if (!status_.has_value()) {
      on_done_ = std::move(function);
      return absl::OkStatus();
    }
  }
  function();
  return absl::OkStatus();
}

void Call::ForgetOnDone() {
  MutexLock lock(&mu_);
  on_done_ = nullptr;
  while (running_) changed_.Wait(&mu_);
}

}  // namespace lodestone::worker
