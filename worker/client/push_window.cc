#include "worker/client/push_window.h"

#include "absl/strings/str_cat.h"

namespace lodestone::worker {

absl::Status PushWindow::Enter(int64_t timeout_ms) {
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  MutexLock lock(&mu_);
  while (failure_.ok() && pushes_ >= pushes_max_) {
    if (!changed_.WaitUntil(&mu_, deadline) && failure_.ok() && pushes_ >= pushes_max_) return TimedOut();
  }
  if (failure_.ok()) ++pushes_;
  return failure_;
}

void PushWindow::Leave(const absl::Status& status) {
  MutexLock lock(&mu_);
  --pushes_;
  if (first_error_.ok()) first_error_ = status;
  changed_.NotifyAll();
}

absl::StatusOr<Sequence> PushWindow::NextSequence(int64_t timeout_ms) {
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  MutexLock lock(&mu_);
  const auto full = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !in_flight_.empty() && last_sequence_ + 1 - *in_flight_.begin() >= sequences_max_;
  };
  while (failure_.ok() && full()) {
    if (!changed_.WaitUntil(&mu_, deadline) && failure_.ok() && full()) return TimedOut();
  }
  if (!failure_.ok()) return failure_;
  in_flight_.insert(++last_sequence_);
  return last_sequence_;
}

void PushWindow::Acknowledge(Sequence sequence) {
  MutexLock lock(&mu_);
  in_flight_.erase(sequence);
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

absl::Status PushWindow::TimedOut() const {
  return absl::DeadlineExceededError(absl::StrCat(
      "the window of pushes stayed full: ", pushes_, " pushes of at most ", pushes_max_, " are unacknowledged",
      in_flight_.empty() ? "" : absl::StrCat(", the oldest with sequence ", *in_flight_.begin())));
}

}  // namespace lodestone::worker
