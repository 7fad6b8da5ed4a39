// The update that made the newest version of each shard of this ps, owned or followed, as far as it is known.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/types.h"
#include "server/wal/update_mark.h"

namespace lodestone::server {

class UpdateLog;

class NewestUpdates {
 public:
  // `updates`: where it is known of shards that were brought back and not updated since; see Bootstrap::Sources.
  NewestUpdates(uint32_t shards, std::function<UpdateLog*()> updates) : updates_(std::move(updates)), of_(shards) {}

  void Set(ShardId shard, const MarkedVersion& update) {
    MutexLock lock(&mu_);
    of_[shard] = update;
  }
  // The mark of the update that made this version; 0: it is not known.
  uint64_t MarkAt(ShardId shard, Version version) const;

 private:
  const std::function<UpdateLog*()> updates_;

  mutable Mutex mu_;
  std::vector<MarkedVersion> of_ ABSL_GUARDED_BY(mu_);  // By shard.
};

}  // namespace lodestone::server
