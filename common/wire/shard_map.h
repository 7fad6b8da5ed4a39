// The shard map: which shard holds a dense block or a key, and which server owns a shard.
//
// Thread safety: pure functions; ShardMap is immutable after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "common/base/types.h"
#include "proto/coordinator.pb.h"

namespace lodestone {

// Id of the table called `name`.
TableId TableIdOf(std::string_view name);

// Shard of embedding row `key` of any table: keys are mixed, so consecutive small integers spread evenly.
inline ShardId ShardOfKey(Key key, uint32_t shards) {
  // The high half of a 64 x 64 bit product maps the mixed key evenly to [0, shards) without a division.
  return static_cast<ShardId>((static_cast<unsigned __int128>(Mix64(key)) * shards) >> 64);
}

// Shard of block `block` of dense table `table`: from a start that depends on the table, consecutive blocks lie on
// consecutive shards, so that a table spreads evenly by bytes.
ShardId ShardOfBlock(TableId table, BlockIndex block, uint32_t shards);

// Elements per block of a dense table of `elements` elements when its specification leaves it open: at most 64 Ki, and
// fewer for a smaller table, so that every shard gets a part of it; at least 4 Ki.
uint32_t DefaultBlockElements(uint64_t elements, uint32_t shards);

// A dense table's division into blocks: all have `block_elements` elements but the last, which may be shorter.
struct BlockLayout {
  uint64_t elements = 0;
  uint32_t block_elements = 1;

  BlockIndex block_count() const { return static_cast<BlockIndex>((elements + block_elements - 1) / block_elements); }
  // REQUIRES: block < block_count().
  uint32_t ElementsOf(BlockIndex block) const {
    const uint64_t begin = uint64_t{block} * block_elements;
    return static_cast<uint32_t>(elements - begin < block_elements ? elements - begin : block_elements);
  }
};

// Which server owns which shard, and which follows it, at one epoch.
class ShardMap {
 public:
  // INVALID_ARGUMENT if an owner or a follower is no server of the map, a server follows itself, or what is said of
  // each shard is said of another number of them than there are (of none: there are no followers, and no owner has
  // changed).
  static absl::StatusOr<ShardMap> FromProto(const v1::RouteResponse& route);

  uint64_t epoch() const { return epoch_; }
  // Whether shards have followers, though each may be away (cluster.replicas above 1).
  bool replicated() const { return !followers_.empty(); }
  uint32_t shards() const { return static_cast<uint32_t>(owners_.size()); }
  uint32_t servers() const { return static_cast<uint32_t>(servers_.size()); }
  // Index of the server that owns `shard`. REQUIRES of this and of all that follow: shard < shards().
  uint32_t OwnerOf(ShardId shard) const { return owners_[shard]; }
  // Index of the server that follows it, the first of two; nullopt: none.
  std::optional<uint32_t> FollowerOf(ShardId shard) const { return ServerIn(followers_, shard); }
  std::optional<uint32_t> SecondFollowerOf(ShardId shard) const { return ServerIn(second_followers_, shard); }
  // All that follow it, the first one first.
  std::vector<uint32_t> FollowersOf(ShardId shard) const;
  // Index of its learner, which gets a copy to take a follower's place; nullopt: none.
  std::optional<uint32_t> LearnerOf(ShardId shard) const { return ServerIn(learners_, shard); }
  // Whether `server` is to hold a copy of it that it does not own.
  bool IsFollowedBy(ShardId shard, uint32_t server) const {
    return FollowerOf(shard) == server || SecondFollowerOf(shard) == server || LearnerOf(shard) == server;
  }
  // Whether its first follower may own it when the owner dies.
  bool InSync(ShardId shard) const { return !in_sync_.empty() && in_sync_[shard]; }
  // Whether `server` follows it and may.
  bool InSync(ShardId shard, uint32_t server) const {
    if (FollowerOf(shard) == server) return InSync(shard);
    return SecondFollowerOf(shard) == server && !second_in_sync_.empty() && second_in_sync_[shard];
  }
  // The epoch at which it last got another owner, or its owner was started again; 0: never.
  uint64_t TermOf(ShardId shard) const { return terms_.empty() ? 0 : terms_[shard]; }

  // The number by which its owner is to give it up (RouteResponse.handovers); 0: it is not to.
  uint64_t HandoverOf(ShardId shard) const { return handovers_.empty() ? 0 : handovers_[shard]; }
  // Whether its owner lacks what it held, and must not serve it.
  bool Lost(ShardId shard) const { return !lost_.empty() && lost_[shard]; }

  // host:port of a server. REQUIRES of this and of all that follow: server < servers().
  const std::string& AddressOf(uint32_t server) const { return servers_[server].address; }
  Incarnation IncarnationOf(uint32_t server) const { return servers_[server].incarnation; }
  // Whether it had left or was dead; its address is where it was last.
  bool Away(uint32_t server) const { return servers_[server].away; }
  // Its socket for processes of its own machine (common/rpc/local_socket.h); empty: it has none.
  const std::string& LocalSocketOf(uint32_t server) const { return servers_[server].local_socket; }
  // The shards of `server`, ascending.
  const std::vector<ShardId>& ShardsOf(uint32_t server) const { return shards_of_[server]; }
  // Those of them that are lost.
  std::vector<ShardId> LostBy(uint32_t server) const;
  // The shards that `server` follows or learns, ascending.
  std::vector<ShardId> FollowedBy(uint32_t server) const;

 private:
  struct Server {
    std::string address;
    Incarnation incarnation = 0;
    bool away = false;
    std::string local_socket;
  };

  absl::Status Check() const;
  absl::Status CheckFollowers(ShardId shard) const;
  // Of `servers` (index plus one; 0: none), that of the shard.
  static std::optional<uint32_t> ServerIn(const std::vector<uint32_t>& servers, ShardId shard) {
    if (servers.empty() || servers[shard] == 0) return std::nullopt;
    return servers[shard] - 1;
  }

  uint64_t epoch_ = 0;
  std::vector<uint32_t> owners_;
  std::vector<uint32_t> followers_;  // Index plus one; 0: none. This and the next seven are empty or one per shard.
  std::vector<bool> in_sync_;
  std::vector<uint32_t> second_followers_;  // As followers_.
  std::vector<bool> second_in_sync_;
  std::vector<uint64_t> terms_;
  std::vector<bool> lost_;
  std::vector<uint64_t> handovers_;
  std::vector<uint32_t> learners_;  // Index plus one; 0: none.
  std::vector<Server> servers_;
  std::vector<std::vector<ShardId>> shards_of_;  // By server.
};

// The owners of a fresh cluster: shard s on server s mod servers.
std::vector<uint32_t> InitialOwners(uint32_t shards, uint32_t servers);

// The followers of a fresh cluster (index plus one): those of one owner's shards are all others in turn, so that each
// server follows as many shards as it owns, and a dead one's load falls on all. `which`: 0 for the first followers, 1
// for the second ones. REQUIRES: servers >= which + 2.
std::vector<uint32_t> InitialFollowers(uint32_t shards, uint32_t servers, uint32_t which = 0);

}  // namespace lodestone
