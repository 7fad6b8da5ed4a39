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
  std::map<std::string, uint32_t> both;  // Shards, by zone.
  for (ShardId shard = 0; shards.mapped() && options.replicated() && shard < options.shards; ++shard) {
    const uint32_t follower = shards.followers()[shard];
    if (follower == 0) continue;
    const MemberPlace& owner = servers[shards.owners()[shard]];
    if (ShareZone(owner, servers[follower - 1])) ++both[owner.zone];
  }
  std::vector<std::string> lines;
  for (const auto& [zone, count] : both) {
    const bool other = std::any_of(servers.begin(), servers.end(), [&, &zone = zone](const MemberPlace& server) {
      return members.Alive(server) && !shards.IsDraining(server.index) && server.zone != zone;
    });
    lines.push_back(absl::StrCat(
        "zone ", zone, " has both copies of ", count, count == 1 ? " shard" : " shards", ": ",
        other ? "one of each is to move to another zone" : "no ps of another zone is there that may hold one"));
  }
  return lines;
}

}  // namespace lodestone::server
