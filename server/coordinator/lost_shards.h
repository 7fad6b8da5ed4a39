// The lost shards of a cluster, which nobody serves: their owners came back without what they held. Of each it is kept
// which folder has it, so that it is found again when a life with that folder joins.
//
// Not thread-safe: belongs to a ShardAssignment.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/types.h"
#include "proto/coordinator.pb.h"
#include "proto/coordinator_state.pb.h"

namespace lodestone::server {

class LostShards {
 public:
  explicit LostShards(uint32_t shards) : lost_(shards), folders_(shards), generations_(shards) {}

  bool IsLost(ShardId shard) const { return lost_[shard]; }
  bool any() const;
  // By shard.
  const std::vector<bool>& all() const { return lost_; }

  // `data`: what has the shard, of that generation or, if its last life began unheard, the next one; of one without a
  // folder, nothing does.
  void Lose(ShardId shard, const v1::ServerData& data);
  // It is lost no more.
  void SetFound(ShardId shard) { lost_[shard] = false; }

  // Whether a shard is lost only as `data`, what its owner keeps it in, may lack its end, which another server has.
  bool IsIncomplete(ShardId shard, const std::optional<v1::ServerData>& data) const;
  // Whether `data`, what its owner keeps it in, is another copy of the folder that has the lost shard.
  bool IsLostToOtherCopy(ShardId shard, const std::optional<v1::ServerData>& data) const;

  // Adds them, if there are any, to a saved state.
  void Save(v1::CoordinatorState* state) const;
  // REQUIRES: a state that CheckState accepts, of as many shards.
  void Restore(const v1::CoordinatorState& state);

 private:
  std::vector<bool> lost_;  // By shard.
  // Of those that are lost: ServerData.folder, 0: none; and ServerData.generation.
  std::vector<uint64_t> folders_, generations_;
};

}  // namespace lodestone::server
