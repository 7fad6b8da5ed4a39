#include "worker/capi/row_copy.h"

#include <algorithm>

#include "common/base/status.h"
#include "common/wire/shard_map.h"

namespace lodestone::worker {

RowCopy::RowCopy(const TableHandle& table, std::span<const Key> keys, uint32_t shards)
    : FollowedShards(shards), table_(table.id), dim_(table.dim), shards_(shards) {
  MutexLock lock(&mu_);
  row_of_.reserve(keys.size());
  for (const Key key : keys) {
    const auto [found, inserted] = index_.try_emplace(key, static_cast<uint32_t>(rows_.size()));
    row_of_.push_back(found->second);
    if (!inserted) continue;
    const ShardId shard = ShardOfKey(key, shards);
    shards_[shard].rows.push_back(found->second);
    rows_.push_back({.shard = shard});
    Want(shard);
  }
  values_.resize(rows_.size() * dim_);
}

void RowCopy::OnAnchor(ShardId shard) {
  MutexLock lock(&mu_);
  if (shard >= shards_.size()) return;
  BeginAnchor(shard);
  ++shards_[shard].anchor;
}

void RowCopy::OnRows(const RowsOfShard& update) {
  MutexLock lock(&mu_);
  if (update.table != table_ || update.shard >= shards_.size()) return;
  ShardState& shard = shards_[update.shard];
  if (shard.rows.empty()) return;
  ByteView evicted = update.evicted, keys = update.keys, values = update.values;
  for (size_t i = 0; i < update.evicted_count; ++i) {
    const auto found = index_.find(evicted.Take(sizeof(Key)).Load<Key>(0));
    if (found != index_.end()) Remove(found->second);
  }
  for (size_t i = 0; i < update.count; ++i) {
    const auto found = index_.find(keys.Take(sizeof(Key)).Load<Key>(0));
    const ByteView row = values.Take(dim_ * sizeof(float));
    if (found == index_.end()) continue;
    row.CopyTo(&values_[found->second * dim_]);
    rows_[found->second] = {update.shard, true, NewStamp(), shard.anchor};
    shard.news = true;
  }
}

void RowCopy::OnShard(ShardId shard, Version version) {
  MutexLock lock(&mu_);
  if (shard >= shards_.size()) return;
  ShardState& state = shards_[shard];
  if (IsAnchoring(shard)) {
    for (const uint32_t row : state.rows) {
      if (rows_[row].anchor != state.anchor) Remove(row);
    }
  }
  NoteShard(shard, version, state.news);
  state.news = false;
}

void RowCopy::Remove(uint32_t row) {
  if (!rows_[row].present) return;
  rows_[row].present = false;
  rows_[row].stamp = NewStamp();
  shards_[rows_[row].shard].news = true;
}

absl::Status RowCopy::Copy(float* values, uint8_t* present, uint64_t since, uint64_t* stamp, ShardVersions* versions) {
  MutexLock lock(&mu_);
  LODESTONE_RETURN_IF_ERROR(CheckComplete());
  for (size_t i = 0; i < row_of_.size(); ++i) {
    const Row& row = rows_[row_of_[i]];
    present[i] = row.present;
    if (row.present && row.stamp > since) std::copy_n(&values_[row_of_[i] * dim_], dim_, values + i * dim_);
  }
  *stamp = this->stamp();
  if (versions != nullptr) *versions = this->versions();
  return absl::OkStatus();
}

}  // namespace lodestone::worker
