// The retry policy of calls: which errors are retried, the backoff, the time limit.
//
// Thread safety: the functions are pure; a Retry belongs to one thread at a time.
#pragma once

#include <algorithm>
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
  int64_t call_timeout_ms = 20'000;  // Time-out of each attempt.
  // No attempt starts later than this after the first, as far as time counts (Retry::EndAttempt). 0: a single attempt.
  int64_t retry_timeout_ms = 60'000;
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
      : policy_(policy), time_(time), started_ms_(started_ms), attempt_ms_(time->NowMs()), backoff_(seed) {}

  // The pause before the next attempt, counted as begun, after one that ended with `code`; nullopt if there is none:
  // the code is final, or the time is up.
  std::optional<int64_t> Next(absl::StatusCode code);

  // An attempt begins; and it has ended without an answer. Of the time that it took one call's time-out counts at most:
  // it may have waited for long behind others, on a link that worked.
  void BeginAttempt() { attempt_ms_ = time_->NowMs(); }
  void EndAttempt() {
    const int64_t now_ms = time_->NowMs();
    started_ms_ += std::max<int64_t>(0, now_ms - attempt_ms_ - policy_.call_timeout_ms);
    attempt_ms_ = now_ms;
  }

  // Attempts so far, at least 1.
  int attempts() const { return attempts_; }
  // When the first attempt began, as far as it counts; and since then.
  int64_t started_ms() const { return started_ms_; }
  int64_t elapsed_ms() const { return time_->NowMs() - started_ms_; }

 private:
  const RetryPolicy policy_;
  const TimeSource* const time_;
  int64_t started_ms_;
  int64_t attempt_ms_;  // When the attempt under way began.
  Backoff backoff_;
  int attempts_ = 1;
};

}  // namespace lodestone
