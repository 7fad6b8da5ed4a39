// A copy of some rows of an embedding table that broadcasts keep fresh.
//
// Thread-safe: the client's threads write, any other reads. Shared by the caller's handle and the client's callbacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/types.h"
#include "worker/capi/followed_shards.h"
#include "worker/client/types.h"

namespace lodestone::worker {

class RowCopy final : public FollowedShards {
 public:
  // Of the rows with `keys`, which may repeat. `shards`: of the cluster.
  RowCopy(const TableHandle& table, std::span<const Key> keys, uint32_t shards);

  // What a subscription calls.
  void OnAnchor(ShardId shard);
  void OnRows(const RowsOfShard& update);
  void OnShard(ShardId shard, Version version);

  // Copies the rows that are there and have changed since the stamp `since` (0: all that are there) to `values`,
  // [keys, dim], in the order of the keys; present[i] is 1 where the i-th is there, also unchanged, and 0 where the
  // table has no such row. Each row is of one version, and none is older than `versions` (by shard, may be null) says.
  // UNAVAILABLE: not all have come.
  absl::Status Copy(float* values, uint8_t* present, uint64_t since, uint64_t* stamp, ShardVersions* versions);

 private:
  // A distinct key.
  struct Row {
    ShardId shard = 0;
    bool present = false;
    uint64_t stamp = 0;   // When it last changed, or went.
    uint64_t anchor = 0;  // The shard's, when it last came.
  };
  struct ShardState {
    std::vector<uint32_t> rows;  // Of it: indices of rows_.
    uint64_t anchor = 0;         // Number of the last that began.
    bool news = false;           // A row has changed since the last change was complete.
  };

  void Remove(uint32_t row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const TableId table_;
  const size_t dim_;
  std::vector<uint32_t> row_of_;  // By place among the keys: index of rows_.
  absl::flat_hash_map<Key, uint32_t> index_;

  std::vector<Row> rows_ ABSL_GUARDED_BY(mu_);
  std::vector<float> values_ ABSL_GUARDED_BY(mu_);  // [rows_, dim]
  std::vector<ShardState> shards_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::worker
