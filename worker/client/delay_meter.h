// The delay of gradients: how many updates, this worker's own and others', came between the reading of values and the
// application of the gradient that was computed from them.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/types.h"
#include "worker/client/types.h"

namespace lodestone::worker {

class DelayMeter {
 public:
  explicit DelayMeter(uint32_t shards) : own_(shards) {}

  // A message of a push of ours became `version` of `shard`. REQUIRES: shard < shards.
  void Record(ShardId shard, Version version);

  // What a push did to a shard.
  struct Applied {
    ShardId shard = 0;
    Version version = 0;    // The newest, if several messages of the push touched the shard,
    uint32_t messages = 1;  // of which there were so many.
  };
  // The delay of a push on the shards `of` (ascending), of those in `applied` (ascending by shard): of the versions
  // after the one in `read` and before the push's own, the mean over the shards that were read (a version above 0 in
  // `read`, which may be empty); nullopt if none was. Exact as far as pushes in between have been recorded: those that
  // have not count as others'.
  std::optional<Delay> Measure(std::span<const ShardId> of, std::span<const Applied> applied,
                               std::span<const Version> read) const;

 private:
  mutable Mutex mu_;
  std::vector<std::vector<Version>> own_ ABSL_GUARDED_BY(mu_);  // By shard, ascending; only the newest are kept.
};

}  // namespace lodestone::worker
