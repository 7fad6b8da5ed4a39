#include "common/shard_map.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/hash.h"

namespace lodestone {
namespace {

constexpr uint32_t kBlockElementsMax = 64 * 1024;
constexpr uint32_t kBlockElementsMin = 4 * 1024;
constexpr uint32_t kBlockElementsStep = 1024;

}  // namespace

TableId TableIdOf(std::string_view name) { return static_cast<TableId>(StableHash(name)); }

ShardId ShardOfKey(Key key, uint32_t shards) {
  // The high half of a 64 x 64 bit product maps the mixed key evenly to [0, shards) without a division.
  return static_cast<ShardId>((static_cast<unsigned __int128>(Mix64(key)) * shards) >> 64);
}

ShardId ShardOfBlock(TableId table, BlockIndex block, uint32_t shards) {
  return static_cast<ShardId>((Mix64(table) % shards + block) % shards);
}

uint32_t DefaultBlockElements(uint64_t elements, uint32_t shards) {
  const uint64_t share = (elements + shards - 1) / shards;
  const uint64_t rounded = (share + kBlockElementsStep - 1) / kBlockElementsStep * kBlockElementsStep;
  return static_cast<uint32_t>(std::clamp<uint64_t>(rounded, kBlockElementsMin, kBlockElementsMax));
}

absl::StatusOr<ShardMap> ShardMap::FromProto(const v1::RouteResponse& route) {
  ShardMap map;
  map.epoch_ = route.epoch();
  for (const auto& server : route.servers()) map.addresses_.push_back(server.address());
  map.owners_.assign(route.owners().begin(), route.owners().end());
  if (map.owners_.empty()) return absl::InvalidArgumentError("the shard map has no shards");
  for (ShardId shard = 0; shard < map.owners_.size(); ++shard) {
    if (map.owners_[shard] >= map.addresses_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the shard map gives shard ", shard, " to server ",
                                                     map.owners_[shard], ", but has ", map.addresses_.size(),
                                                     " servers"));
    }
  }
  return map;
}

std::vector<ShardId> ShardMap::ShardsOf(uint32_t server) const {
  std::vector<ShardId> shards;
  for (ShardId shard = 0; shard < owners_.size(); ++shard) {
    if (owners_[shard] == server) shards.push_back(shard);
  }
  return shards;
}

std::vector<uint32_t> InitialOwners(uint32_t shards, uint32_t servers) {
  std::vector<uint32_t> owners(shards);
  for (uint32_t shard = 0; shard < shards; ++shard) owners[shard] = shard % servers;
  return owners;
}

}  // namespace lodestone
