// The roles of a ps's shards.
//
// Thread-safe: reading never waits. A role changes on the shard's executor, so that no message of it sees half of two.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/base/types.h"

namespace lodestone::server {

enum class ShardRole : uint8_t {
  kNone,       // It is not here.
  kFollowing,  // Follows its owner, and is not complete yet: its contents do not count.
  kFollows,    // Has all that its owner has sent.
  kGivesUp,    // Owns it by the map, and answers for it no more: another ps is to own it.
  kOwns,
};

class ShardRoles {
 public:
  explicit ShardRoles(uint32_t shards) : roles_(shards) {}

  uint32_t shards() const { return static_cast<uint32_t>(roles_.size()); }
  // kNone for an id that is no shard's.
  ShardRole Of(ShardId shard) const {
    return shard < roles_.size() ? roles_[shard].load(std::memory_order_acquire) : ShardRole::kNone;
  }
  // REQUIRES: shard < shards().
  void Set(ShardId shard, ShardRole role) { roles_[shard].store(role, std::memory_order_release); }

  // The shards with this role or a greater one, ascending.
  std::vector<ShardId> AtLeast(ShardRole role) const {
    std::vector<ShardId> shards;
    for (ShardId shard = 0; shard < roles_.size(); ++shard) {
      if (Of(shard) >= role) shards.push_back(shard);
    }
    return shards;
  }

 private:
  std::vector<std::atomic<ShardRole>> roles_;
};

}  // namespace lodestone::server
