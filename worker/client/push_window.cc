#include "worker/client/push_window.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::worker {

absl::Status PushWindow::Await(absl::FunctionRef<bool()> full, int64_t timeout_ms) {
  const Time began = std::chrono::steady_clock::now();
  while (failure_.ok() && full()) {
    const Time deadline = std::max(began, moved_) + std::chrono::milliseconds(timeout_ms);
    if (changed_.WaitUntil(&mu_, deadline) || !failure_.ok() || !full()) continue;
    if (std::chrono::steady_clock::now() < std::max(began, moved_) + std::chrono::milliseconds(timeout_ms)) continue;
    return absl::DeadlineExceededError(absl::StrCat(
        "the window of pushes stayed full: ", pushes_, " pushes of at most ", pushes_max_, " are unacknowledged",
        in_flight_.empty()
            ? ""
            : absl::StrCat(", ", bytes_, " bytes, the oldest with sequence ", in_flight_.begin()->first)));
  }
  return failure_;
}

absl::Status PushWindow::Enter(int64_t timeout_ms) {
  MutexLock lock(&mu_);
  const auto full = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return pushes_ >= pushes_max_; };
  LODESTONE_RETURN_IF_ERROR(Await(full, timeout_ms));
  ++pushes_;
  return absl::OkStatus();
}

void PushWindow::SetPushesMax(size_t pushes) {
  MutexLock lock(&mu_);
  pushes_max_ = pushes;
  changed_.NotifyAll();
}

void PushWindow::Leave(const absl::Status& status) {
  MutexLock lock(&mu_);
  --pushes_;
  moved_ = std::chrono::steady_clock::now();
  if (first_error_.ok()) first_error_ = status;
  changed_.NotifyAll();
}

absl::StatusOr<Sequence> PushWindow::NextSequence(uint64_t bytes, int64_t timeout_ms) {
  MutexLock lock(&mu_);
  const auto full = [this, bytes]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (in_flight_.empty()) return false;
    return last_sequence_ + 1 - in_flight_.begin()->first >= sequences_max_ || bytes_ + bytes > bytes_max_;
  };
  LODESTONE_RETURN_IF_ERROR(Await(full, timeout_ms));
  in_flight_.emplace(++last_sequence_, bytes);
  bytes_ += bytes;
  return last_sequence_;
}

void PushWindow::Acknowledge(Sequence sequence) {
  MutexLock lock(&mu_);
  if (const auto found = in_flight_.find(sequence); found != in_flight_.end()) {
    bytes_ -= found->second;
    in_flight_.erase(found);
    moved_ = std::chrono::steady_clock::now();
  }
  changed_.NotifyAll();
}

void PushWindow::Fail(const absl::Status& status) {
  MutexLock lock(&mu_);
  if (failure_.ok()) failure_ = status;
  changed_.NotifyAll();
}

absl::Status PushWindow::Flush() {
  MutexLock lock(&mu_);
  while (pushes_ > 0) changed_.Wait(&mu_);
  return first_error_;
}

}  // namespace lodestone::worker
