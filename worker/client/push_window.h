// The window of unacknowledged pushes: bounds their number, and the span of their messages' sequences.
//
// Thread-safe. Methods that wait return an error once the window has failed or the deadline has passed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <set>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/types.h"

namespace lodestone::worker {

class PushWindow {
 public:
  // REQUIRES: pushes_max > 0, sequences_max > 0.
  explicit PushWindow(size_t pushes_max, uint64_t sequences_max = limits::kSequenceWindow)
      : pushes_max_(pushes_max), sequences_max_(sequences_max) {}

  // Waits until fewer than `pushes_max` pushes are in flight and adds one. DEADLINE_EXCEEDED, naming the oldest
  // sequence that is unacknowledged, after `timeout_ms`.
  absl::Status Enter(int64_t timeout_ms);
  // A push that entered has ended, with this status.
  void Leave(const absl::Status& status);

  // The next sequence, once those in flight span less than `sequences_max` with it. Errors as Enter.
  absl::StatusOr<Sequence> NextSequence(int64_t timeout_ms);
  // Ends a sequence: no message with it will be sent again.
  void Acknowledge(Sequence sequence);

  // Ends waiting and later calls of Enter and NextSequence with `status`.
  void Fail(const absl::Status& status);

  // Waits until no push is in flight. The first error that a push ended with, if any.
  absl::Status Flush();

 private:
  using Deadline = std::chrono::steady_clock::time_point;

  // The error of a wait that has reached its deadline.
  absl::Status TimedOut() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const size_t pushes_max_;
  const uint64_t sequences_max_;

  Mutex mu_;
  CondVar changed_;
  size_t pushes_ ABSL_GUARDED_BY(mu_) = 0;
  Sequence last_sequence_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<Sequence> in_flight_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);      // Of the window.
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);  // Of a push.
};

}  // namespace lodestone::worker
