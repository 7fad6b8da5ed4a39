#include "common/base/retry.h"

#include <algorithm>
#include <optional>

#include "common/base/limits.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

TEST(Retry, PassesOnlyWhatMayPass) {
  for (auto code : {absl::StatusCode::kUnavailable, absl::StatusCode::kDeadlineExceeded,
                    absl::StatusCode::kResourceExhausted, absl::StatusCode::kAborted}) {
    EXPECT_TRUE(IsRetryable(code)) << code;
  }
  for (auto code : {absl::StatusCode::kOk, absl::StatusCode::kCancelled, absl::StatusCode::kInvalidArgument,
                    absl::StatusCode::kNotFound, absl::StatusCode::kFailedPrecondition, absl::StatusCode::kInternal,
                    absl::StatusCode::kUnimplemented, absl::StatusCode::kUnknown}) {
    EXPECT_FALSE(IsRetryable(code)) << code;
  }
}

TEST(Backoff, DoublesFromTheShortestPauseToTheLongest) {
  Backoff backoff(7);
  int64_t floor = limits::kRetryBackoffMinMs;
  for (int i = 0; i < 20; ++i) {
    const int64_t pause = backoff.NextMs();
    EXPECT_GE(pause, floor) << i;
    EXPECT_LE(pause, 2 * floor) << i;
    EXPECT_LE(pause, limits::kRetryBackoffMaxMs) << i;
    floor = std::min(2 * floor, limits::kRetryBackoffMaxMs / 2);
  }
  backoff.Reset();
  EXPECT_LE(backoff.NextMs(), 2 * limits::kRetryBackoffMinMs);
}

TEST(Backoff, DiffersBetweenSeedsAndRepeatsForOne) {
  Backoff a(1), b(2), again(1);
  bool differs = false;
  for (int i = 0; i < 10; ++i) {
    const int64_t pause = a.NextMs();
    EXPECT_EQ(again.NextMs(), pause);
    differs |= b.NextMs() != pause;
  }
  EXPECT_TRUE(differs);
}

TEST(Retry, GoesOnUntilItsTimeIsUp) {
  ManualTime time;
  Retry retry({.call_timeout_ms = 100, .retry_timeout_ms = 10'000}, &time, 1);
  int64_t waited = 0;
  while (const std::optional<int64_t> pause = retry.Next(absl::StatusCode::kUnavailable)) {
    waited += *pause;
    time.AdvanceMs(*pause);
  }
  EXPECT_EQ(retry.elapsed_ms(), waited);
  EXPECT_LE(waited, 10'000);
  EXPECT_GT(waited, 10'000 - limits::kRetryBackoffMaxMs);
  EXPECT_GE(retry.attempts(), 10'000 / limits::kRetryBackoffMaxMs);
}

TEST(Retry, CountsTheTimeFromWhereItIsSaidToHaveBegun) {
  ManualTime time;
  time.AdvanceMs(10'000);
  Retry retry({.call_timeout_ms = 100, .retry_timeout_ms = 10'000}, &time, 1, /*started_ms=*/time.NowMs() - 9'990);
  EXPECT_EQ(retry.elapsed_ms(), 9'990);
  EXPECT_EQ(retry.Next(absl::StatusCode::kUnavailable), std::nullopt)
      << "the shortest pause is longer than what is left";
}

TEST(Retry, OfAnAttemptThatWaitedForLongOneTimeOutCounts) {
  ManualTime time;
  Retry retry({.call_timeout_ms = 100, .retry_timeout_ms = 10'000}, &time, 1);
  for (int attempt = 1; attempt <= 3; ++attempt) {
    retry.BeginAttempt();
    time.AdvanceMs(50'000);
    retry.EndAttempt();
    EXPECT_EQ(retry.elapsed_ms(), attempt * 100);
    EXPECT_NE(retry.Next(absl::StatusCode::kUnavailable), std::nullopt);
  }
  retry.BeginAttempt();
  time.AdvanceMs(30);
  retry.EndAttempt();
  EXPECT_EQ(retry.elapsed_ms(), 330);
}

TEST(Retry, EndsAtOnceOnAFinalCode) {
  ManualTime time;
  Retry retry({.call_timeout_ms = 100, .retry_timeout_ms = 10'000}, &time, 1);
  EXPECT_EQ(retry.Next(absl::StatusCode::kFailedPrecondition), std::nullopt);
  EXPECT_EQ(retry.attempts(), 1);
}

TEST(Retry, MakesOneAttemptWhenTheTimeIsZero) {
  ManualTime time;
  Retry retry({.call_timeout_ms = 100, .retry_timeout_ms = 0}, &time, 1);
  EXPECT_EQ(retry.Next(absl::StatusCode::kUnavailable), std::nullopt);
}

}  // namespace
}  // namespace lodestone
