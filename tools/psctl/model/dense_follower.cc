#include "tools/psctl/model/dense_follower.h"

#include <utility>

namespace lodestone::psctl {

DenseFollower::DenseFollower(const std::vector<const worker::TableHandle*>& tables, DenseTables values)
    : values_(std::move(values)) {
  for (const worker::TableHandle* const table : tables) {
    tables_.push_back({table->id, table->layout, std::vector<Version>(table->layout.block_count(), 0)});
  }
}

void DenseFollower::OnBlock(const worker::BlockUpdate& update) {
  MutexLock lock(&mu_);
  for (size_t t = 0; t < tables_.size(); ++t) {
    Table& table = tables_[t];
    if (table.id != update.table) continue;
    if (update.block >= table.layout.block_count() || update.count != table.layout.ElementsOf(update.block)) return;
    // Versions are of the owner's term: those of an anchor may be lower.
    if (update.version < table.versions[update.block] && !anchoring_.contains(update.shard)) return;
    table.versions[update.block] = update.version;
    update.values.CopyTo(values_[t].data() + uint64_t{update.block} * table.layout.block_elements);
    newest_.reset();
    return;
  }
}

void DenseFollower::OnAnchor(ShardId shard) {
  MutexLock lock(&mu_);
  anchoring_.insert(shard);
}

bool DenseFollower::OnShard(ShardId shard) {
  MutexLock lock(&mu_);
  return anchoring_.erase(shard) > 0;
}

std::shared_ptr<const DenseTables> DenseFollower::Newest() {
  MutexLock lock(&mu_);
  if (newest_ == nullptr) newest_ = std::make_shared<const DenseTables>(values_);
  return newest_;
}

}  // namespace lodestone::psctl
