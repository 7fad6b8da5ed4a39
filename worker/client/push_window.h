// The window of unacknowledged pushes: bounds their number, the span of their messages' sequences, and the bytes of
// those, so that a push of gigabytes does not lie in the queues of connections all at once.
//
// Thread-safe. Methods that wait return an error once the window has failed, or nothing has left it for the time-out.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/types.h"

namespace lodestone::worker {

class PushWindow {
 public:
  // REQUIRES: pushes_max > 0, sequences_max > 0.
  explicit PushWindow(size_t pushes_max, uint64_t sequences_max = limits::kSequenceWindow,
                      uint64_t bytes_max = limits::kPushBytesInFlightMax)
      : sequences_max_(sequences_max), bytes_max_(bytes_max), pushes_max_(pushes_max) {}

  // Waits until fewer than `pushes_max` pushes are in flight and adds one. DEADLINE_EXCEEDED, naming the oldest
  // sequence that is unacknowledged, when no message has been acknowledged for `timeout_ms`.
  absl::Status Enter(int64_t timeout_ms);
  // From now on so many, which may be fewer than are in flight. REQUIRES: pushes > 0.
  void SetPushesMax(size_t pushes);
  // A push that entered has ended, with this status.
  void Leave(const absl::Status& status);

  // The next sequence, for a message of `bytes`, once those in flight span less than `sequences_max` with it, and take
  // no more than `bytes_max` with it unless it is alone. Errors as Enter.
  absl::StatusOr<Sequence> NextSequence(uint64_t bytes, int64_t timeout_ms);
  // Ends a sequence: no message with it will be sent again.
  void Acknowledge(Sequence sequence);

  // Ends waiting and later calls of Enter and NextSequence with `status`.
  void Fail(const absl::Status& status);

  // Waits until no push is in flight. The first error that a push ended with, if any.
  absl::Status Flush();

 private:
  using Time = std::chrono::steady_clock::time_point;

  // Waits until not `full`; OK, or why it does not wait any more.
  absl::Status Await(absl::FunctionRef<bool()> full, int64_t timeout_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t sequences_max_;
  const uint64_t bytes_max_;

  Mutex mu_;
  CondVar changed_;
  size_t pushes_max_ ABSL_GUARDED_BY(mu_);
  size_t pushes_ ABSL_GUARDED_BY(mu_) = 0;
  Sequence last_sequence_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<Sequence, uint64_t> in_flight_ ABSL_GUARDED_BY(mu_);  // With the bytes of their messages.
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;                      // Of them all.
  Time moved_ ABSL_GUARDED_BY(mu_);                              // When one was acknowledged, or a push left.
  absl::Status failure_ ABSL_GUARDED_BY(mu_);                    // Of the window.
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);                // Of a push.
};

}  // namespace lodestone::worker
