// The plan of moves: which shards are to get which other owner, as an operator asked, and which servers are to own
// none.
//
// It plans only. Not thread-safe: belongs to ShardMoves, which carries it out.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/types.h"
#include "proto/coordinator_state.pb.h"

namespace lodestone::server {

class MovePlan {
 public:
  // Servers from `taking` on drain at first.
  MovePlan(uint32_t shards, uint32_t servers, uint32_t taking);

  // A number that grows with every change.
  uint64_t changes() const { return changes_; }

  // The server that a shard is to move to; nullopt: it stays where it is.
  std::optional<uint32_t> TargetOf(ShardId shard) const {
    return targets_[shard] == 0 ? std::nullopt : std::optional<uint32_t>(targets_[shard] - 1);
  }
  bool any() const;
  void Plan(ShardId shard, uint32_t server);
  // The shard stays, or is there. Returns whether it was to move.
  bool Forget(ShardId shard);

  // Whether a server is to own no shard.
  bool IsDraining(uint32_t server) const { return draining_[server]; }
  const std::vector<bool>& draining() const { return draining_; }
  void SetDraining(uint32_t server, bool draining);

  // Plans a move of each shard that a draining server owns and that is not to move yet, or to a draining server: to a
  // follower (`followers` has indices plus one; empty: none has any), which needs no copy, or else to the server that
  // will own the fewest, of those that `may_take` it. One that none may take stays.
  void PlanDrains(const std::vector<uint32_t>& owners, const std::vector<uint32_t>& followers,
                  absl::FunctionRef<bool(uint32_t server, ShardId)> may_take);

  // Plans moves until servers of `may_take` that do not drain will own the same number of shards, give or take one.
  void PlanLevel(const std::vector<uint32_t>& owners, const std::vector<bool>& may_take);

  // Whether followers are to change until all servers hold as many copies, give or take one.
  bool levels_followers() const { return levels_followers_; }
  void SetLevelsFollowers(bool levels);

  void Save(v1::CoordinatorState* state) const;
  // REQUIRES: a state that CheckState accepts, of as many shards and servers, in which there is a shard map.
  void Restore(const v1::CoordinatorState& state);

 private:
  // Shards by server, once all moves are done.
  std::vector<uint32_t> OwnedInTheEnd(const std::vector<uint32_t>& owners) const;

  std::vector<uint32_t> targets_;  // By shard: index plus one; 0: none.
  std::vector<bool> draining_;     // By server.
  bool levels_followers_ = false;
  uint64_t changes_ = 0;
};

}  // namespace lodestone::server
