// Where data lives: which shard holds a dense block or a key, and which server owns a shard.
//
// Thread safety: pure functions; ShardMap is immutable after construction.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/types.h"
#include "proto/coordinator.pb.h"

namespace lodestone {

// Id of the table called `name`.
TableId TableIdOf(std::string_view name);

// Shard of embedding row `key` of any table: keys are mixed, so consecutive small integers spread evenly.
ShardId ShardOfKey(Key key, uint32_t shards);

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

// Which server owns which shard, at one epoch.
class ShardMap {
 public:
  // Checks that every owner is a server of the map; INVALID_ARGUMENT otherwise.
  static absl::StatusOr<ShardMap> FromProto(const v1::RouteResponse& route);

  uint64_t epoch() const { return epoch_; }
  uint32_t shards() const { return static_cast<uint32_t>(owners_.size()); }
  uint32_t servers() const { return static_cast<uint32_t>(addresses_.size()); }
  // Index of the server that owns `shard`. REQUIRES: shard < shards().
  uint32_t OwnerOf(ShardId shard) const { return owners_[shard]; }
  // host:port of a server. REQUIRES: server < servers().
  const std::string& AddressOf(uint32_t server) const { return addresses_[server]; }
  // The shards of `server`, ascending.
  std::vector<ShardId> ShardsOf(uint32_t server) const;

 private:
  uint64_t epoch_ = 0;
  std::vector<uint32_t> owners_;
  std::vector<std::string> addresses_;
};

// The owners of a fresh cluster: shard s on server s mod servers.
std::vector<uint32_t> InitialOwners(uint32_t shards, uint32_t servers);

}  // namespace lodestone
