#include "server/coordinator/follower_choice.h"

#include <tuple>

#include "common/base/types.h"
#include "server/coordinator/zones.h"

namespace lodestone::server {
namespace {

class Choice {
 public:
  Choice(const MemberTable& members, const std::vector<uint32_t>& owners, const std::vector<bool>& draining,
         const Followers& followers)
      : members_(members), servers_(members.servers()), owners_(owners), draining_(draining), held_(servers_.size()) {
    for (ShardId shard = 0; shard < owners.size(); ++shard) {
      ++held_[owners[shard]];
      for (const uint32_t follower : followers.Of(shard)) ++held_[follower];
    }
  }

  // Whether another one than `follower` (index plus one) is to be in its place; `other` (the same) follows the shard
  // too.
  bool Replace(ShardId shard, bool in_sync, uint32_t other, uint32_t* follower) {
    if (*follower > 0 && (members_.Alive(servers_[*follower - 1]) || in_sync)) return false;
    uint32_t best = 0;  // Index plus one.
    const auto rank = [&](uint32_t one) {
      const uint32_t same_zone = ShareZone(servers_[owners_[shard]], servers_[one]) +
                                 (other > 0 && ShareZone(servers_[other - 1], servers_[one]));
      return std::tuple(!draining_.empty() && draining_[one], same_zone, held_[one]);
    };
    for (uint32_t server = 0; server < held_.size(); ++server) {
      if (!members_.Alive(servers_[server]) || server == owners_[shard] || server + 1 == other) continue;
      if (best == 0 || rank(server) < rank(best - 1)) best = server + 1;
    }
    if (best == 0) return false;
    if (*follower > 0) --held_[*follower - 1];
    ++held_[best - 1];
    *follower = best;
    return true;
  }

 private:
  const MemberTable& members_;
  const MemberPlaces& servers_;
  const std::vector<uint32_t>& owners_;
  const std::vector<bool>& draining_;
  std::vector<uint32_t> held_;  // Shards, by who owns or follows them.
};

}  // namespace

bool ChooseFollowers(const MemberTable& members, const std::vector<uint32_t>& owners, const std::vector<bool>& draining,
                     Followers* followers) {
  Choice choice(members, owners, draining, *followers);
  bool changed = false;
  std::vector<uint32_t>& firsts = *followers->mutable_firsts();
  std::vector<uint32_t>& seconds = *followers->mutable_seconds();
  for (ShardId shard = 0; shard < owners.size(); ++shard) {
    changed |= choice.Replace(shard, followers->in_sync()[shard], seconds[shard], &firsts[shard]);
  }
  for (ShardId shard = 0; followers->wanted() > 1 && shard < owners.size(); ++shard) {
    changed |= choice.Replace(shard, followers->second_in_sync()[shard], firsts[shard], &seconds[shard]);
  }
  return changed;
}

}  // namespace lodestone::server
