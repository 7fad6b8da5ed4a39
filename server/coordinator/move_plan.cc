#include "server/coordinator/move_plan.h"

#include <algorithm>

namespace lodestone::server {

MovePlan::MovePlan(uint32_t shards, uint32_t servers, uint32_t taking) : targets_(shards), draining_(servers) {
  std::fill(draining_.begin() + taking, draining_.end(), true);
}

bool MovePlan::any() const {
  return std::any_of(targets_.begin(), targets_.end(), [](uint32_t target) { return target > 0; });
}

void MovePlan::Plan(ShardId shard, uint32_t server) {
  if (targets_[shard] == server + 1) return;
  targets_[shard] = server + 1;
  ++changes_;
}

bool MovePlan::Forget(ShardId shard) {
  if (targets_[shard] == 0) return false;
  targets_[shard] = 0;
  ++changes_;
  return true;
}

void MovePlan::SetDraining(uint32_t server, bool draining) {
  if (draining_[server] == draining) return;
  draining_[server] = draining;
  ++changes_;
}

std::vector<uint32_t> MovePlan::OwnedInTheEnd(const std::vector<uint32_t>& owners) const {
  std::vector<uint32_t> owned(draining_.size());
  for (ShardId shard = 0; shard < owners.size(); ++shard) ++owned[TargetOf(shard).value_or(owners[shard])];
  return owned;
}

void MovePlan::SetLevelsFollowers(bool levels) {
  changes_ += levels_followers_ != levels;
  levels_followers_ = levels;
}

void MovePlan::PlanDrains(const std::vector<uint32_t>& owners, const std::vector<uint32_t>& followers,
                          absl::FunctionRef<bool(uint32_t server, ShardId)> may_take) {
  std::vector<uint32_t> owned = OwnedInTheEnd(owners);
  for (ShardId shard = 0; shard < owners.size(); ++shard) {
    const uint32_t there = TargetOf(shard).value_or(owners[shard]);
    if (!draining_[there]) continue;
    std::optional<uint32_t> best;
    for (uint32_t server = 0; server < owned.size(); ++server) {
      if (draining_[server] || !may_take(server, shard)) continue;
      if (!best.has_value() || owned[server] < owned[*best]) best = server;
    }
    const uint32_t follower = followers.empty() ? 0 : followers[shard];
    if (follower > 0 && !draining_[follower - 1] && may_take(follower - 1, shard)) best = follower - 1;
    if (!best.has_value()) continue;
    if (*best == owners[shard]) {
      Forget(shard);
    } else {
      Plan(shard, *best);
    }
    --owned[there];
    ++owned[*best];
  }
}

void MovePlan::PlanLevel(const std::vector<uint32_t>& owners, const std::vector<bool>& may_take) {
  std::vector<uint32_t> owned = OwnedInTheEnd(owners);
  const auto takes = [&](uint32_t server) { return may_take[server] && !draining_[server]; };
  // Each move brings two numbers nearer to each other, so that it ends.
  for (bool moved = true; moved;) {
    moved = false;
    for (ShardId shard = 0; shard < owners.size(); ++shard) {
      if (TargetOf(shard).has_value() || !may_take[owners[shard]]) continue;
      uint32_t best = owners[shard];
      for (uint32_t server = 0; server < owned.size(); ++server) {
        if (takes(server) && owned[server] < owned[best]) best = server;
      }
      if (owned[best] + 1 >= owned[owners[shard]]) continue;
      Plan(shard, best);
      --owned[owners[shard]];
      ++owned[best];
      moved = true;
    }
  }
}

void MovePlan::Save(v1::CoordinatorState* state) const {
  if (any()) state->mutable_moves()->Add(targets_.begin(), targets_.end());
  for (uint32_t server = 0; server < draining_.size(); ++server) {
    if (draining_[server]) state->add_draining(server);
  }
  state->set_levels_followers(levels_followers_);
}

void MovePlan::Restore(const v1::CoordinatorState& state) {
  if (!state.moves().empty()) targets_.assign(state.moves().begin(), state.moves().end());
  std::fill(draining_.begin(), draining_.end(), false);
  for (const uint32_t server : state.draining()) draining_[server] = true;
  levels_followers_ = state.levels_followers();
}

}  // namespace lodestone::server
