#include "server/coordinator/unserved_shards.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lodestone::server {
namespace {

// "ps 2": those with equal copies.
std::string HoldersOf(const ShardAssignment& shards, const std::vector<ShardId>& incomplete) {
  std::set<std::string> holders;
  for (const ShardId shard : incomplete) {
    holders.insert(absl::StrCat("ps ", static_cast<int64_t>(shards.equal().HolderOf(shard)) - 1));
  }
  return absl::StrJoin(holders, " and ");
}

// "`psctl promote 1` makes ps 1 their owner, which holds copies of 32 of them, up to version 812", for each that does.
std::vector<std::string> Promotions(const MemberTable& members, const std::vector<ShardId>& unserved) {
  std::vector<std::string> promotions;
  for (const MemberPlace& place : members.servers()) {
    if (!members.Alive(place)) continue;
    uint32_t copies = 0;
    Version newest = 0;
    for (const ShardId shard : unserved) {
      const auto copy = place.copies.find(shard);
      if (copy == place.copies.end()) continue;
      ++copies;
      newest = std::max(newest, copy->second);
    }
    if (copies == 0) continue;
    promotions.push_back(absl::StrCat("`psctl promote ", place.index, "` makes ps ", place.index,
                                      " their owner, which holds copies of ", copies, " of them, up to version ",
                                      newest, " (what these lack is lost)"));
  }
  return promotions;
}

}  // namespace

std::vector<std::string> UnservedLines(const ClusterOptions& options, const MemberTable& members,
                                       const ShardAssignment& shards) {
  std::vector<std::string> lines;
  if (!shards.mapped()) return lines;
  for (const MemberPlace& place : members.servers()) {
    std::vector<ShardId> lost, away, incomplete;
    for (ShardId shard = 0; shard < options.shards; ++shard) {
      if (shards.owners()[shard] != place.index || !shards.IsUnserved(shard)) continue;
      const bool ends_early = shards.lost().IsIncomplete(shard, place.data) && shards.equal().HolderOf(shard) != 0;
      (ends_early ? incomplete : shards.lost().IsLost(shard) ? lost : away).push_back(shard);
    }
    if (!incomplete.empty()) {
      const std::string holders = HoldersOf(shards, incomplete);
      lines.push_back(
          absl::StrCat(incomplete.size(), " of ", options.shards, " shards are not served: the machine of ps ",
                       place.index, " went down, and the end of what it had of them may be missing; ", holders,
                       " has them whole. Start ", holders, "; or, if it cannot come back, `psctl accept-loss ",
                       place.index, "` goes on with what ps ", place.index, " has"));
    }
    if (!lost.empty()) {
      std::vector<std::string> remedies = Promotions(members, lost);
      remedies.push_back(absl::StrCat("`psctl accept-loss ", place.index, "` goes on with what ps ", place.index,
                                      " has of them, perhaps nothing"));
      const bool other = std::any_of(lost.begin(), lost.end(),
                                     [&](ShardId shard) { return shards.lost().IsLostToOtherCopy(shard, place.data); });
      const std::string why =
          other
              ? absl::StrCat("ps ", place.index,
                             " was restarted with another copy of its folder than it served from last (a backup, or a "
                             "snapshot), which lacks what was acknowledged since. Start it with that one")
          : shards.owners_unknown()
              ? absl::StrCat("the coordinator has lost its state, and does not know whether they were those of ps ",
                             place.index,
                             " (another coordinator.etcd, or server.data_dir of ps 0). Start it with the former one")
              : absl::StrCat("ps ", place.index,
                             " was restarted without their data (another server.data_dir, or none). Start it with its "
                             "former folder");
      lines.push_back(absl::StrCat(lost.size(), " of ", options.shards, " shards are lost and not served: ", why,
                                   "; or ", absl::StrJoin(remedies, "; or ")));
    }
    const std::vector<std::string> promotions = Promotions(members, away);
    if (promotions.empty()) continue;
    lines.push_back(absl::StrCat(away.size(), " of ", options.shards, " shards are not served: ps ", place.index,
                                 " is away. Start it again; or, if it cannot come back, ",
                                 absl::StrJoin(promotions, "; or ")));
  }
  return lines;
}

}  // namespace lodestone::server
