// The learners of shards with followers: for each shard at most one server that gets a copy beside the followers, of
// whom it takes one's place when it has all. Before that the coordinator does not count on it, so that it may come and
// go.
//
// Not thread-safe: belongs to the ShardAssignment.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/types.h"
#include "proto/coordinator_state.pb.h"
#include "server/coordinator/followers.h"

namespace lodestone::server {

class Learners {
 public:
  explicit Learners(uint32_t shards) : servers_(shards), replaced_(shards) {}

  // By shard: index plus one; 0: none.
  const std::vector<uint32_t>& servers() const { return servers_; }
  bool any() const;
  std::optional<uint32_t> Of(ShardId shard) const;
  // The follower whose place it is to take; nullopt: any, or what is restored does not say.
  std::optional<uint32_t> ReplacedBy(ShardId shard) const;
  void Set(ShardId shard, std::optional<uint32_t> server, std::optional<uint32_t> replaced = std::nullopt);
  // The server learns no shard any more. Returns whether it did.
  bool Remove(uint32_t server);
  // What follows a shard does not learn it.
  void RemoveFollowers(const Followers& followers);

  void Save(v1::CoordinatorState* state) const;
  // REQUIRES: a state that CheckState accepts, of as many shards.
  void Restore(const v1::CoordinatorState& state);

 private:
  std::vector<uint32_t> servers_;
  std::vector<uint32_t> replaced_;  // Index plus one; 0: any.
};

}  // namespace lodestone::server
