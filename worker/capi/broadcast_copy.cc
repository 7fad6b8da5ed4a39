#include "worker/capi/broadcast_copy.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "common/wire/shard_map.h"

namespace lodestone::worker {

BroadcastCopy::BroadcastCopy(std::vector<const TableHandle*> tables, uint32_t shards)
    : table_count_(tables.size()), wanted_(shards, false), versions_(shards, 0), come_(shards, false) {
  for (const TableHandle* handle : tables) {
    Table& table = tables_.emplace_back();
    table.handle = *handle;
    table.values.resize(handle->layout.elements);
    table.blocks.resize(handle->layout.block_count());
    for (BlockIndex b = 0; b < table.blocks.size(); ++b) wanted_[ShardOfBlock(handle->id, b, shards)] = true;
  }
  missing_ = static_cast<uint32_t>(std::count(wanted_.begin(), wanted_.end(), true));
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
    if (update.version < block.version) return;
    update.values.CopyTo(table.values.data() + uint64_t{update.block} * layout.block_elements);
    block = {update.version, ++stamp_};
    return;
  }
}

void BroadcastCopy::OnShard(ShardId shard, Version version) {
  MutexLock lock(&mu_);
  if (shard >= versions_.size()) return;
  versions_[shard] = std::max(versions_[shard], version);
  if (wanted_[shard] && !come_[shard]) --missing_;
  come_[shard] = true;
  ++stamp_;
  changed_.NotifyAll();
}

uint64_t BroadcastCopy::Wait(uint64_t stamp, int64_t timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  MutexLock lock(&mu_);
  while (missing_ > 0 || stamp_ <= stamp) {
    if (timeout_ms < 0) {
      changed_.Wait(&mu_);
    } else if (!changed_.WaitUntil(&mu_, deadline)) {
      break;
    }
  }
  return missing_ > 0 ? 0 : stamp_;
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
    if (missing_ > 0) {
      return absl::UnavailableError(absl::StrCat("the values of ", missing_, " shards have not come yet"));
    }
    for (size_t t = 0; t < tables_.size(); ++t) {
      for (BlockIndex b = 0; b < tables_[t].blocks.size(); ++b) {
        if (tables_[t].blocks[b].stamp > since || since == 0) changed.emplace_back(t, b);
      }
    }
    *stamp = stamp_;
    if (versions != nullptr) *versions = versions_;
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
