// The retry policy of calls: which errors are retried, the backoff, the time limit.
//
// Thread safety: the functions are pure; a Retry belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "common/base/time_source.h"

namespace lodestone {

// Whether a call that ended like this may succeed if it is sent again as it is: the peer was unreachable, overloaded,
// too slow, or busy with something that excludes it.
bool IsRetryable(absl::StatusCode code);

// How long one call may take.
struct RetryPolicy {
  int64_t call_timeout_ms = 20'000;   // Deadline of each attempt.
  int64_t retry_timeout_ms = 60'000;  // No attempt starts later than this after the first. 0: a single attempt.
};

// The pauses between attempts: they double from limits::kRetryBackoffMinMs to limits::kRetryBackoffMaxMs, and each is
// drawn from its upper half, so that many callers do not come back at once. Deterministic in the seed.
class Backoff {
 public:
  explicit Backoff(uint64_t seed) : seed_(seed) {}

  // The next pause.
  int64_t NextMs();
  // The next pause is short again.
  void Reset() { doublings_ = 0; }

 private:
  const uint64_t seed_;
  uint64_t drawn_ = 0;
  int doublings_ = 0;
};

// One call's attempts. The first is under way when the object is made. `time` must outlive it.
class Retry {
 public:
  Retry(const RetryPolicy& policy, const TimeSource* time, uint64_t seed) : Retry(policy, time, seed, time->NowMs()) {}
  // As if the first attempt had begun at `started_ms`.
  Retry(const RetryPolicy& policy, const TimeSource* time, uint64_t seed, int64_t started_ms)
      : policy_(policy), time_(time), started_ms_(started_ms), backoff_(seed) {}

  // The pause before the next attempt, counted as begun, after one that ended with `code`; nullopt if there is none:
  // the code is final, or the time is up.
  std::optional<int64_t> Next(absl::StatusCode code);

  // Attempts so far, at least 1.
  int attempts() const { return attempts_; }
  // Since the first attempt began.
  int64_t elapsed_ms() const { return time_->NowMs() - started_ms_; }

 private:
  const RetryPolicy policy_;
  const TimeSource* const time_;
  const int64_t started_ms_;
  Backoff backoff_;
  int attempts_ = 1;
};

}  // namespace lodestone
