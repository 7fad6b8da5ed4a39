#include "server/store/dense_snapshot.h"

#include <utility>

#include "common/base/limits.h"
#include "server/store/delta_builder.h"

namespace lodestone::server {
namespace {

uint64_t BytesOf(const Shard::Snapshot& snapshot) {
  uint64_t bytes = 0;
  for (const Shard::Snapshot::DensePart& part : snapshot.dense) {
    for (const DenseTable::BlockState& block : part.blocks) bytes += block.values->size_bytes();
  }
  return bytes;
}

}  // namespace

DenseSnapshot::DenseSnapshot(Shard::Snapshot snapshot, uint64_t term, std::shared_ptr<BroadcastMemory> memory)
    : snapshot_(std::move(snapshot)), term_(term), bytes_(BytesOf(snapshot_)), pinned_(std::move(memory), bytes_) {}

std::shared_ptr<const ShardChange> DenseSnapshot::ChangeSince(const std::shared_ptr<const DenseSnapshot>& snapshot,
                                                              std::optional<Version> from) {
  MutexLock lock(&snapshot->mu_);
  auto change = snapshot->changes_.find(from);
  if (change == snapshot->changes_.end()) {
    change = snapshot->changes_
                 .emplace(from, AssembleChange(snapshot->snapshot_, from, snapshot->term_, limits::kDeltaBytesTarget))
                 .first;
  }
  return {snapshot, &change->second};
}

}  // namespace lodestone::server
