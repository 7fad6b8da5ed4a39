// How much an identity may push: payload bytes and pushes per second, each as a bucket that fills up with time and
// holds what a second brings.
//
// A push is taken as long as the debt is repaid within kQuotaDelayMsMax; who pushes more than that ahead is refused.
// What is owed is to be waited for before more is taken from the same stream.
//
// Thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "proto/identities.pb.h"

namespace lodestone::server {

// A stream is held off for so long at most, and a push refused if it would have to be for longer.
inline constexpr int64_t kQuotaDelayMsMax = 1000;

// Takes `n` out of what `rate` per second brings.
class TokenBucket {
 public:
  // `rate` 0: any. Full at first.
  explicit TokenBucket(uint64_t rate, int64_t now_ms)
      : rate_(static_cast<double>(rate)), level_(rate_), filled_ms_(now_ms) {}

  // Milliseconds until what is owed now will be there; 0 if nothing is.
  int64_t DebtMs(int64_t now_ms);
  void Take(uint64_t n) { level_ -= static_cast<double>(n); }

 private:
  const double rate_;
  double level_;  // Below 0: owed.
  int64_t filled_ms_;
};

class Quota {
 public:
  Quota(const v1::Identity& identity, const TimeSource* time);

  // Takes a push of `bytes`. For how long nothing more is to be taken from its stream, at most kQuotaDelayMsMax; 0: as
  // it pleases. RESOURCE_EXHAUSTED, naming the quota, if too much is owed already: nothing was taken then.
  absl::StatusOr<int64_t> Take(uint64_t bytes);

 private:
  const v1::Identity identity_;
  const TimeSource* const time_;

  Mutex mu_;
  TokenBucket bytes_ ABSL_GUARDED_BY(mu_);
  TokenBucket pushes_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::server
