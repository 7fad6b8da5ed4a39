#include "server/coordinator/learners.h"

#include <algorithm>

namespace lodestone::server {

bool Learners::any() const {
  return std::any_of(servers_.begin(), servers_.end(), [](uint32_t server) { return server > 0; });
}

std::optional<uint32_t> Learners::Of(ShardId shard) const {
  return servers_[shard] == 0 ? std::nullopt : std::optional<uint32_t>(servers_[shard] - 1);
}

bool Learners::Remove(uint32_t server) {
  const bool learnt = std::find(servers_.begin(), servers_.end(), server + 1) != servers_.end();
  std::replace(servers_.begin(), servers_.end(), server + 1, 0u);
  return learnt;
}

void Learners::RemoveFollowers(const std::vector<uint32_t>& followers) {
  for (ShardId shard = 0; shard < servers_.size(); ++shard) {
    if (servers_[shard] == followers[shard]) servers_[shard] = 0;
  }
}

void Learners::Save(v1::CoordinatorState* state) const {
  if (any()) state->mutable_learners()->Add(servers_.begin(), servers_.end());
}

void Learners::Restore(const v1::CoordinatorState& state) {
  if (!state.learners().empty()) servers_.assign(state.learners().begin(), state.learners().end());
}

}  // namespace lodestone::server
