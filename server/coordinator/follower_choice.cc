#include "server/coordinator/follower_choice.h"

#include "common/base/types.h"

namespace lodestone::server {

bool ChooseFollowers(const std::vector<uint32_t>& owners, const std::vector<bool>& alive,
                     const std::vector<bool>& draining, const std::vector<bool>& in_sync,
                     std::vector<uint32_t>* followers) {
  std::vector<uint32_t> held(alive.size());  // Shards, by who owns or follows them.
  for (ShardId shard = 0; shard < owners.size(); ++shard) {
    ++held[owners[shard]];
    if ((*followers)[shard] > 0) ++held[(*followers)[shard] - 1];
  }
  bool changed = false;
  for (ShardId shard = 0; shard < owners.size(); ++shard) {
    const uint32_t former = (*followers)[shard];
    if (former > 0 && (alive[former - 1] || in_sync[shard])) continue;
    uint32_t best = 0;  // Index plus one.
    for (uint32_t server = 0; server < held.size(); ++server) {
      if (!alive[server] || server == owners[shard]) continue;
      const auto rank = [&](uint32_t one) { return std::pair(!draining.empty() && draining[one], held[one]); };
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
