#include "server/coordinator/learners.h"

#include <algorithm>

namespace lodestone::server {

bool Learners::any() const {
  return std::any_of(servers_.begin(), servers_.end(), [](uint32_t server) { return server > 0; });
}

std::optional<uint32_t> Learners::Of(ShardId shard) const {
  return servers_[shard] == 0 ? std::nullopt : std::optional<uint32_t>(servers_[shard] - 1);
}

std::optional<uint32_t> Learners::ReplacedBy(ShardId shard) const {
  return replaced_[shard] == 0 ? std::nullopt : std::optional<uint32_t>(replaced_[shard] - 1);
}

void Learners::Set(ShardId shard, std::optional<uint32_t> server, std::optional<uint32_t> replaced) {
  servers_[shard] = server.has_value() ? *server + 1 : 0;
  replaced_[shard] = replaced.has_value() ? *replaced + 1 : 0;
}

bool Learners::Remove(uint32_t server) {
  bool learnt = false;
  for (ShardId shard = 0; shard < servers_.size(); ++shard) {
    if (servers_[shard] != server + 1) continue;
    Set(shard, std::nullopt);
    learnt = true;
  }
  return learnt;
}

void Learners::RemoveFollowers(const Followers& followers) {
  for (ShardId shard = 0; shard < servers_.size(); ++shard) {
    if (servers_[shard] > 0 && followers.Follows(servers_[shard] - 1, shard)) Set(shard, std::nullopt);
  }
}

void Learners::Save(v1::CoordinatorState* state) const {
  if (any()) state->mutable_learners()->Add(servers_.begin(), servers_.end());
}

void Learners::Restore(const v1::CoordinatorState& state) {
  if (!state.learners().empty()) servers_.assign(state.learners().begin(), state.learners().end());
}

}  // namespace lodestone::server
