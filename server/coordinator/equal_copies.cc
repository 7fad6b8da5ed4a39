#include "server/coordinator/equal_copies.h"

namespace lodestone::server {

void EqualCopies::Save(absl::FunctionRef<bool(ShardId)> lasts, google::protobuf::RepeatedField<uint32_t>* saved) const {
  bool any = false;
  for (ShardId shard = 0; shard < holders_.size(); ++shard) any = any || (holders_[shard] != 0 && lasts(shard));
  if (!any) return;
  for (ShardId shard = 0; shard < holders_.size(); ++shard) saved->Add(lasts(shard) ? holders_[shard] : 0);
}

void EqualCopies::Restore(const google::protobuf::RepeatedField<uint32_t>& saved) {
  if (!saved.empty()) holders_.assign(saved.begin(), saved.end());
}

}  // namespace lodestone::server
