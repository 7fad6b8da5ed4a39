// The staleness of gradients: how many updates by others came between the reading of values and the push computed from
// them.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/types.h"

namespace lodestone::worker {

class StalenessMeter {
 public:
  explicit StalenessMeter(uint32_t shards) : own_(shards) {}

  // A push of ours became `version` of `shard`. REQUIRES: shard < shards.
  void Record(ShardId shard, Version version);

  // What a push did to a shard.
  struct Applied {
    ShardId shard = 0;
    Version version = 0;  // The newest, if several messages of the push touched the shard.
  };
  // Mean over the shards that were read (a version above 0 in `read_versions`, which may be empty) of the versions in
  // (read, applied] that are not pushes of ours; 0 if none was read. Exact as far as pushes in between have been
  // recorded.
  double Measure(std::span<const Applied> applied, std::span<const Version> read_versions) const;

 private:
  mutable Mutex mu_;
  std::vector<std::vector<Version>> own_ ABSL_GUARDED_BY(mu_);  // By shard, ascending; only the newest are kept.
};

}  // namespace lodestone::worker
