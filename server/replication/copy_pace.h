// The rate at which followers are sent what they lack, states and logs together, while pushes come: so that those go on
// as before. While none comes there is no limit.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/token_bucket.h"

namespace lodestone::server {

class FollowStream;

class CopyPace {
 public:
  // 0: unlimited.
  explicit CopyPace(uint64_t bytes_per_second);

  // An update is being made. Cheap.
  void NoteUpdate() { updated_ms_.store(time_.NowMs(), std::memory_order_relaxed); }
  // Waits until `bytes` more may be sent to a follower, `hurry` times as fast as usual; false once its stream ends.
  bool Await(const FollowStream& stream, uint64_t bytes, uint64_t hurry = 1);

 private:
  const SteadyTime time_;
  std::atomic<int64_t> updated_ms_{0};

  Mutex mu_;
  CondVar paused_;                           // Nobody notifies it.
  TokenBucket tokens_ ABSL_GUARDED_BY(mu_);  // Bytes.
};

}  // namespace lodestone::server
