#include "server/coordinator/follower_choice.h"

#include <tuple>

#include "common/base/types.h"
#include "server/coordinator/zones.h"

namespace lodestone::server {

bool ChooseFollowers(const MemberTable& members, const std::vector<uint32_t>& owners, const std::vector<bool>& draining,
                     const std::vector<bool>& in_sync, std::vector<uint32_t>* followers) {
  const MemberPlaces& servers = members.servers();
  std::vector<uint32_t> held(servers.size());  // Shards, by who owns or follows them.
  for (ShardId shard = 0; shard < owners.size(); ++shard) {
    ++held[owners[shard]];
    if ((*followers)[shard] > 0) ++held[(*followers)[shard] - 1];
  }
  bool changed = false;
  for (ShardId shard = 0; shard < owners.size(); ++shard) {
    const uint32_t former = (*followers)[shard];
    if (former > 0 && (members.Alive(servers[former - 1]) || in_sync[shard])) continue;
    uint32_t best = 0;  // Index plus one.
    for (uint32_t server = 0; server < held.size(); ++server) {
      if (!members.Alive(servers[server]) || server == owners[shard]) continue;
      const auto rank = [&](uint32_t one) {
        return std::tuple(!draining.empty() && draining[one], ShareZone(servers[owners[shard]], servers[one]),
                          held[one]);
      };
      if (best == 0 || rank(server) < rank(best - 1)) best = server + 1;
    }
    if (best == 0) continue;
    if (former > 0) --held[former - 1];
    ++held[best - 1];
    (*followers)[shard] = best;
    changed = true;
  }
  return changed;
}

}  // namespace lodestone::server
