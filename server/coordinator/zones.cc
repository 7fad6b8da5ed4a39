#include "server/coordinator/zones.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/types.h"

namespace lodestone::server {

bool ShareZone(const MemberPlace& a, const MemberPlace& b) { return !a.zone.empty() && a.zone == b.zone; }

std::vector<std::string> OneZoneLines(const ClusterOptions& options, const MemberTable& members,
                                      const ShardAssignment& shards) {
  const MemberPlaces& servers = members.servers();
  std::map<std::string, uint32_t> all;  // Shards, by zone.
  for (ShardId shard = 0; shards.mapped() && options.replicated() && shard < options.shards; ++shard) {
    const std::vector<uint32_t> followers = shards.copies().Of(shard);
    const MemberPlace& owner = servers[shards.owners()[shard]];
    const auto shares = [&](uint32_t follower) { return ShareZone(owner, servers[follower]); };
    if (!followers.empty() && std::all_of(followers.begin(), followers.end(), shares)) ++all[owner.zone];
  }
  std::vector<std::string> lines;
  for (const auto& [zone, count] : all) {
    const bool other = std::any_of(servers.begin(), servers.end(), [&, &zone = zone](const MemberPlace& server) {
      return members.Alive(server) && !shards.IsDraining(server.index) && server.zone != zone;
    });
    lines.push_back(absl::StrCat(
        "zone ", zone, options.followers() > 1 ? " has all copies of " : " has both copies of ", count,
        count == 1 ? " shard" : " shards", ": ",
        other ? "one of each is to move to another zone" : "no ps of another zone is there that may hold one"));
  }
  return lines;
}

}  // namespace lodestone::server
