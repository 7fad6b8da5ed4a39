#include "worker/capi/broadcast_copy.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/log.h"
#include "common/wire/shard_map.h"

namespace lodestone::worker {

BroadcastCopy::BroadcastCopy(std::vector<const TableHandle*> tables, uint32_t shards)
    : FollowedShards(shards), table_count_(tables.size()) {
  MutexLock lock(&mu_);
  for (const TableHandle* handle : tables) {
    Table& table = tables_.emplace_back();
    table.handle = *handle;
    table.values.resize(handle->layout.elements);
    table.blocks.resize(handle->layout.block_count());
    for (BlockIndex b = 0; b < table.blocks.size(); ++b) Want(ShardOfBlock(handle->id, b, shards));
  }
}

void BroadcastCopy::OnAnchor(ShardId shard) {
  MutexLock lock(&mu_);
  BeginAnchor(shard);
}

void BroadcastCopy::OnBlock(const BlockUpdate& update) {
  MutexLock lock(&mu_);
  for (Table& table : tables_) {
    const BlockLayout& layout = table.handle.layout;
    if (table.handle.id != update.table) continue;
    if (update.block >= layout.block_count() || update.count != layout.ElementsOf(update.block)) {
      LODESTONE_LOG(WARN, "subscription", "broadcast block of a wrong size ignored table={} block={} count={}",
                    update.table, update.block, update.count);
      return;
    }
    Block& block = table.blocks[update.block];
    // Versions are of the owner's term: those of an anchor may be lower.
    if (update.version < block.version && !IsAnchoring(update.shard)) return;
    update.values.CopyTo(table.values.data() + uint64_t{update.block} * layout.block_elements);
    block = {update.version, NewStamp()};
    return;
  }
}

void BroadcastCopy::OnShard(ShardId shard, Version version) {
  MutexLock lock(&mu_);
  NoteShard(shard, version, /*news=*/true);
}

absl::Status BroadcastCopy::Copy(std::span<float* const> values, uint64_t since, uint64_t* stamp,
                                 ShardVersions* versions) {
  std::vector<std::pair<size_t, BlockIndex>> changed;
  {
    MutexLock lock(&mu_);
    if (values.size() != tables_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the subscription is to ", tables_.size(), " tables, and there are ", values.size(), " arrays"));
    }
    LODESTONE_RETURN_IF_ERROR(CheckComplete());
    for (size_t t = 0; t < tables_.size(); ++t) {
      for (BlockIndex b = 0; b < tables_[t].blocks.size(); ++b) {
        if (tables_[t].blocks[b].stamp > since || since == 0) changed.emplace_back(t, b);
      }
    }
    *stamp = this->stamp();
    if (versions != nullptr) *versions = this->versions();
  }
  // A lock for each block: what comes meanwhile need not wait for all of them.
  for (const auto& [t, b] : changed) {
    MutexLock lock(&mu_);
    const BlockLayout& layout = tables_[t].handle.layout;
    const uint64_t offset = uint64_t{b} * layout.block_elements;
    std::memcpy(values[t] + offset, tables_[t].values.data() + offset, layout.ElementsOf(b) * sizeof(float));
  }
  return absl::OkStatus();
}

}  // namespace lodestone::worker
