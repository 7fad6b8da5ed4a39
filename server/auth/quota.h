// The push quota of an identity: payload bytes and pushes per second, each a token bucket that holds one second's
// worth.
//
// A push is admitted while its debt can be repaid within kQuotaDelayMsMax, and refused beyond that. Nothing more is to
// be read from its stream until the debt is repaid.
//
// Thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "proto/identities.pb.h"

namespace lodestone::server {

// The longest pause of a stream; a push that would need a longer one is refused.
inline constexpr int64_t kQuotaDelayMsMax = 1000;

// A token bucket of `rate` tokens per second.
class TokenBucket {
 public:
  // `rate` 0: unlimited. Full at first.
  explicit TokenBucket(uint64_t rate, int64_t now_ms)
      : rate_(static_cast<double>(rate)), level_(rate_), filled_ms_(now_ms) {}

  // Milliseconds until the debt is repaid; 0 if there is none.
  int64_t DebtMs(int64_t now_ms);
  void Take(uint64_t n) { level_ -= static_cast<double>(n); }

 private:
  const double rate_;
  double level_;  // Below 0: debt.
  int64_t filled_ms_;
};

class Quota {
 public:
  Quota(const v1::Identity& identity, const TimeSource* time);

  // Takes a push of `bytes`. Returns the pause of its stream in ms, at most kQuotaDelayMsMax. RESOURCE_EXHAUSTED,
  // naming the quota, if the debt is too large already: nothing was taken then.
  absl::StatusOr<int64_t> Take(uint64_t bytes);

 private:
  const v1::Identity identity_;
  const TimeSource* const time_;

  Mutex mu_;
  TokenBucket bytes_ ABSL_GUARDED_BY(mu_);
  TokenBucket pushes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::server
