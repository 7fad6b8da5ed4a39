// The followers of a cluster's shards: for each shard at most two servers that hold copies of what its owner does, and
// whether they are in sync.
//
// The order of two says little: the first is the one in sync, if one is, and the one that is to own the shard where
// that changes hands as planned.
//
// Not thread-safe: belongs to the ShardAssignment.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/types.h"
#include "proto/coordinator.pb.h"
#include "proto/coordinator_state.pb.h"

namespace lodestone::server {

class Followers {
 public:
  // `wanted`: of each shard, 0 to 2; 0: one while the shard moves.
  Followers(uint32_t shards, uint32_t wanted);

  uint32_t wanted() const { return wanted_; }
  // By shard: the first ones, as index plus one; 0: none. And whether they are in sync.
  const std::vector<uint32_t>& firsts() const { return firsts_; }
  const std::vector<bool>& in_sync() const { return in_sync_; }
  // The same of the second ones.
  const std::vector<uint32_t>& seconds() const { return seconds_; }
  const std::vector<bool>& second_in_sync() const { return second_in_sync_; }
  // Those of a shard, the first one first.
  std::vector<uint32_t> Of(ShardId shard) const;
  bool any() const;
  bool Follows(uint32_t server, ShardId shard) const {
    return firsts_[shard] == server + 1 || seconds_[shard] == server + 1;
  }
  bool IsInSync(uint32_t server, ShardId shard) const {
    return firsts_[shard] == server + 1 ? in_sync_[shard] : seconds_[shard] == server + 1 && second_in_sync_[shard];
  }
  // Whether a shard has as many followers as are wanted, all in sync; and whether those that it has are.
  bool IsComplete(ShardId shard) const;
  bool AreInSync(ShardId shard) const;

  // A server that follows the shard is in sync, or not any more.
  void SetInSync(uint32_t server, ShardId shard, bool in_sync);
  // The server follows the shard in the place of another one, which it need not do any more, and is not in sync.
  void Replace(uint32_t before, uint32_t server, ShardId shard);
  // The first one is the server alone (index plus one; 0: nobody), not in sync.
  void SetFirst(ShardId shard, uint32_t server);
  // The first one is the server, in the place of the former first one unless it was the second.
  void PutFirst(uint32_t server, ShardId shard);
  void Swap(ShardId shard);
  // The first one owns the shard now, and `former` follows it, if followers are wanted; nobody is in sync.
  void Promote(ShardId shard, uint32_t former);
  // Nobody follows the shard in the second place.
  void ClearSecond(ShardId shard);

  // Removes followers that cannot be: a shard's owner, by `owners`, and a second follower that is the first one too.
  void DropImpossible(const std::vector<uint32_t>& owners);
  // To have others chosen: the first ones, or the second ones.
  std::vector<uint32_t>* mutable_firsts() { return &firsts_; }
  std::vector<uint32_t>* mutable_seconds() { return &seconds_; }

  void FillRoute(v1::RouteResponse* route) const;
  void Save(v1::CoordinatorState* state) const;
  // Goes on from a state that CheckState accepts and that has followers, of as many shards. Returns whether others are
  // wanted than those: a second one less, or more.
  bool Restore(const v1::CoordinatorState& state);

 private:
  const uint32_t wanted_;
  // By shard; index plus one; 0: none.
  std::vector<uint32_t> firsts_;
  std::vector<bool> in_sync_;
  std::vector<uint32_t> seconds_;
  std::vector<bool> second_in_sync_;
};

}  // namespace lodestone::server
