// A copy of dense tables that broadcasts keep fresh.
//
// Thread-safe: the client's threads write, any other reads. Shared by the caller's handle and the client's callbacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "worker/capi/followed_shards.h"
#include "worker/client/types.h"

namespace lodestone::worker {

class BroadcastCopy final : public FollowedShards {
 public:
  // `shards`: of the cluster. The tables are copied.
  BroadcastCopy(std::vector<const TableHandle*> tables, uint32_t shards);

  // What a subscription calls.
  void OnAnchor(ShardId shard);
  void OnBlock(const BlockUpdate& update);
  void OnShard(ShardId shard, Version version);

  // How many tables it is of.
  size_t tables() const { return table_count_; }

  // Copies the values of table i to values[i], but for blocks that have not changed since the stamp `since`. Each block
  // is of one version, and none is older than `versions` (by shard, may be null) says. UNAVAILABLE: not all are there.
  absl::Status Copy(std::span<float* const> values, uint64_t since, uint64_t* stamp, ShardVersions* versions);

 private:
  struct Block {
    Version version = 0;
    uint64_t stamp = 0;  // When it last changed.
  };
  struct Table {
    TableHandle handle;  // A copy: this may live longer than the client and its tables.
    std::vector<float> values;
    std::vector<Block> blocks;
  };

  const size_t table_count_;
  std::vector<Table> tables_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::worker
