#include "server/coordinator/equal_copies.h"

#include <algorithm>

namespace lodestone::server {

void EqualCopies::Set(ShardId shard, uint32_t holder, bool asleep) {
  if (holders_[shard] == holder && asleep_[shard] == asleep) return;
  holders_[shard] = holder;
  asleep_[shard] = asleep;
  ++changes_;
}

void EqualCopies::Save(absl::FunctionRef<bool(ShardId)> ended, v1::CoordinatorState* state) const {
  std::vector<uint32_t> of_ended(holders_.size()), others(holders_.size());
  for (ShardId shard = 0; shard < holders_.size(); ++shard) {
    (ended(shard) && !asleep_[shard] ? of_ended : others)[shard] = holders_[shard];
  }
  const auto any = [](const std::vector<uint32_t>& holders) {
    return std::any_of(holders.begin(), holders.end(), [](uint32_t holder) { return holder != 0; });
  };
  if (any(of_ended)) state->mutable_equal_copies()->Add(of_ended.begin(), of_ended.end());
  if (!any(others)) return;
  state->mutable_other_equal_copies()->Add(others.begin(), others.end());
  state->mutable_equal_asleep()->Add(asleep_.begin(), asleep_.end());
}

void EqualCopies::Restore(const v1::CoordinatorState& state) {
  for (ShardId shard = 0; shard < holders_.size(); ++shard) {
    const int i = static_cast<int>(shard);
    const uint32_t of_ended = state.equal_copies().empty() ? 0 : state.equal_copies(i);
    const uint32_t other = state.other_equal_copies().empty() ? 0 : state.other_equal_copies(i);
    holders_[shard] = of_ended != 0 ? of_ended : other;
    asleep_[shard] = of_ended == 0 && other != 0 && !state.equal_asleep().empty() && state.equal_asleep(i);
  }
}

}  // namespace lodestone::server
