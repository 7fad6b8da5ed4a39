#include "server/coordinator/equal_copies.h"

#include <algorithm>

namespace lodestone::server {

void EqualCopies::Save(absl::FunctionRef<bool(ShardId)> lasts, google::protobuf::RepeatedField<uint32_t>* saved) const {
  const auto kept = [&](ShardId shard) { return asleep_[shard] || !lasts(shard) ? 0 : holders_[shard]; };
  bool any = false;
  for (ShardId shard = 0; shard < holders_.size(); ++shard) any = any || kept(shard) != 0;
  if (!any) return;
  for (ShardId shard = 0; shard < holders_.size(); ++shard) saved->Add(kept(shard));
}

void EqualCopies::Restore(const google::protobuf::RepeatedField<uint32_t>& saved) {
  if (!saved.empty()) holders_.assign(saved.begin(), saved.end());
}

}  // namespace lodestone::server
