// The dense blocks of some tables on one shard at one version, for all subscribers that are sent what changed up to it.
//
// Thread-safe. Ownership: keeps the blocks alive, and counts their bytes while it does.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "common/base/mutex.h"
#include "common/base/types.h"
#include "server/shard/shard.h"
#include "server/store/broadcast_memory.h"
#include "server/store/shard_change.h"

namespace lodestone::server {

class DenseSnapshot {
 public:
  // `snapshot` has all blocks, and no rows; it is of `term`. Their bytes count in `memory`.
  DenseSnapshot(Shard::Snapshot snapshot, uint64_t term, std::shared_ptr<BroadcastMemory> memory);

  Version version() const { return snapshot_.version; }
  uint64_t term() const { return term_; }
  uint64_t bytes() const { return bytes_; }

  // What changed since version `from` of the same term (nullopt: an anchor). Assembled once for all who hold `from`;
  // keeps `snapshot` alive. REQUIRES: from <= version().
  static std::shared_ptr<const ShardChange> ChangeSince(const std::shared_ptr<const DenseSnapshot>& snapshot,
                                                        std::optional<Version> from);

 private:
  // Constant after construction.
  const Shard::Snapshot snapshot_;
  const uint64_t term_;
  const uint64_t bytes_;
  const PinnedBytes pinned_;

  mutable Mutex mu_;
  mutable std::map<std::optional<Version>, ShardChange> changes_ ABSL_GUARDED_BY(mu_);  // Never removed.
};

}  // namespace lodestone::server
