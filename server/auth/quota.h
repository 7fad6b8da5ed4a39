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
#include "common/base/token_bucket.h"
#include "proto/identities.pb.h"

namespace lodestone::server {

// The longest pause of a stream; a push that would need a longer one is refused.
inline constexpr int64_t kQuotaDelayMsMax = 1000;

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
