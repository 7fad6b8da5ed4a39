#include "common/wire/shard_map.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"

namespace lodestone {
namespace {

constexpr uint32_t kBlockElementsMax = 64 * 1024;
constexpr uint32_t kBlockElementsMin = 4 * 1024;
constexpr uint32_t kBlockElementsStep = 1024;

}  // namespace

TableId TableIdOf(std::string_view name) { return static_cast<TableId>(StableHash(name)); }

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
  for (const auto& server : route.servers()) {
    map.servers_.push_back({server.address(), server.incarnation(), server.away(), server.local_socket()});
  }
  map.owners_.assign(route.owners().begin(), route.owners().end());
  map.followers_.assign(route.followers().begin(), route.followers().end());
  map.in_sync_.assign(route.in_sync().begin(), route.in_sync().end());
  map.second_followers_.assign(route.second_followers().begin(), route.second_followers().end());
  map.second_in_sync_.assign(route.second_in_sync().begin(), route.second_in_sync().end());
  map.terms_.assign(route.terms().begin(), route.terms().end());
  map.lost_.assign(route.lost().begin(), route.lost().end());
  map.handovers_.assign(route.handovers().begin(), route.handovers().end());
  map.learners_.assign(route.learners().begin(), route.learners().end());
  if (absl::Status status = map.Check(); !status.ok()) return status;
  map.shards_of_.resize(map.servers_.size());
  for (ShardId shard = 0; shard < map.owners_.size(); ++shard) map.shards_of_[map.owners_[shard]].push_back(shard);
  return map;
}

absl::Status ShardMap::Check() const {
  if (owners_.empty()) return absl::InvalidArgumentError("the shard map has no shards");
  for (const auto& [what, size] : {std::pair{"followers", followers_.size()},
                                   {"followers in sync or not", in_sync_.size()},
                                   {"second followers", second_followers_.size()},
                                   {"second followers in sync or not", second_in_sync_.size()},
                                   {"terms", terms_.size()},
                                   {"shards lost or not", lost_.size()},
                                   {"handovers", handovers_.size()},
                                   {"learners", learners_.size()}}) {
    if (size == 0 || size == owners_.size()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the shard map has ", owners_.size(), " shards and ", size, " ", what));
  }
  for (ShardId shard = 0; shard < owners_.size(); ++shard) {
    if (owners_[shard] >= servers_.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the shard map gives shard ", shard, " to server ", owners_[shard],
                                                     ", but has ", servers_.size(), " servers"));
    }
    if (absl::Status status = CheckFollowers(shard); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status ShardMap::CheckFollowers(ShardId shard) const {
  const std::optional<uint32_t> first = FollowerOf(shard), second = SecondFollowerOf(shard), learner = LearnerOf(shard);
  const auto check = [&](const char* what, const std::optional<uint32_t>& server, bool is_another) {
    if (!server.has_value() || (*server < servers_.size() && *server != owners_[shard] && !is_another)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("the shard map lets server ", *server, " ", what, " shard ", shard,
                                                   " of server ", owners_[shard], ", and has ", servers_.size(),
                                                   " servers"));
  };
  if (absl::Status status = check("follow", first, false); !status.ok()) return status;
  if (absl::Status status = check("follow", second, second == first); !status.ok()) return status;
  if (absl::Status status = check("learn", learner, learner == first || learner == second); !status.ok()) return status;
  const bool second_in_sync = !second_in_sync_.empty() && second_in_sync_[shard];
  if ((InSync(shard) && !first.has_value()) || (second_in_sync && !second.has_value())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the shard map has a follower of shard ", shard, " in sync, and names none"));
  }
  if (HandoverOf(shard) > 0 && !InSync(shard)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the shard map has shard ", shard, " change hands, and no follower is in sync"));
  }
  return absl::OkStatus();
}

std::vector<uint32_t> ShardMap::FollowersOf(ShardId shard) const {
  std::vector<uint32_t> followers;
  for (const std::optional<uint32_t> server : {FollowerOf(shard), SecondFollowerOf(shard)}) {
    if (server.has_value()) followers.push_back(*server);
  }
  return followers;
}

std::vector<ShardId> ShardMap::LostBy(uint32_t server) const {
  std::vector<ShardId> shards = ShardsOf(server);
  std::erase_if(shards, [this](ShardId shard) { return !Lost(shard); });
  return shards;
}

std::vector<ShardId> ShardMap::FollowedBy(uint32_t server) const {
  std::vector<ShardId> shards;
  for (ShardId shard = 0; shard < owners_.size(); ++shard) {
    if (IsFollowedBy(shard, server)) shards.push_back(shard);
  }
  return shards;
}

std::vector<uint32_t> InitialOwners(uint32_t shards, uint32_t servers) {
  std::vector<uint32_t> owners(shards);
  for (uint32_t shard = 0; shard < shards; ++shard) owners[shard] = shard % servers;
  return owners;
}

std::vector<uint32_t> InitialFollowers(uint32_t shards, uint32_t servers, uint32_t which) {
  std::vector<uint32_t> followers(shards);
  for (uint32_t shard = 0; shard < shards; ++shard) {
    const uint32_t round = shard / servers;
    followers[shard] = (shard % servers + 1 + (round + which) % (servers - 1)) % servers + 1;
  }
  return followers;
}

}  // namespace lodestone
