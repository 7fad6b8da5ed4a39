#include "server/coordinator/lost_shards.h"

#include <algorithm>

#include "server/coordinator/member_place.h"

namespace lodestone::server {

bool LostShards::any() const { return std::find(lost_.begin(), lost_.end(), true) != lost_.end(); }

void LostShards::Lose(ShardId shard, const v1::ServerData& data) {
  lost_[shard] = true;
  folders_[shard] = data.folder();
  generations_[shard] = data.generation();
}

bool LostShards::IsIncomplete(ShardId shard, const std::optional<v1::ServerData>& data) const {
  return lost_[shard] && data.has_value() && data->folder() != 0 && data->folder() == folders_[shard] &&
         !IsLostToOtherCopy(shard, data);
}

bool LostShards::IsLostToOtherCopy(ShardId shard, const std::optional<v1::ServerData>& data) const {
  v1::ServerData has;
  has.set_folder(folders_[shard]);
  has.set_generation(generations_[shard]);
  return lost_[shard] && data.has_value() && IsOtherCopy(*data, has);
}

void LostShards::Save(v1::CoordinatorState* state) const {
  if (!any()) return;
  state->mutable_lost()->Add(lost_.begin(), lost_.end());
  state->mutable_lost_folders()->Add(folders_.begin(), folders_.end());
  state->mutable_lost_generations()->Add(generations_.begin(), generations_.end());
}

void LostShards::Restore(const v1::CoordinatorState& state) {
  if (!state.lost().empty()) lost_.assign(state.lost().begin(), state.lost().end());
  if (!state.lost_folders().empty()) folders_.assign(state.lost_folders().begin(), state.lost_folders().end());
  if (!state.lost_generations().empty()) {
    generations_.assign(state.lost_generations().begin(), state.lost_generations().end());
  }
}

}  // namespace lodestone::server
