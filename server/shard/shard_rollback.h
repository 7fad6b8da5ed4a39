// The rollback of one table's part of a shard: what it is to become is staged record by record, then taken at once.
//
// Not thread-safe: for the shard's executor. Ownership: belongs to the shard.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "proto/checkpoint.pb.h"

namespace lodestone::server {

struct ShardContents;

class ShardRollback {
 public:
  explicit ShardRollback(ShardContents* contents) : contents_(contents) {}

  // Stages a block, or rows or a page, of one table; in any order. INVALID_ARGUMENT, naming the table and block, page
  // or key, for what does not fit. Any error, here and of Commit, drops all that was staged; the shard is as it was.
  absl::Status Stage(const v1::CheckpointRecord& record, std::span<const uint8_t> payload);
  // Takes what is staged as the update `version`. Blocks and rows that were not given are as a table's that is made at
  // `now_ms`; windows stay, and steps that have begun end (StepCollector::EndBegunSteps). Also DATA_LOSS if `version`
  // does not follow on the shard's.
  absl::Status Commit(TableId table, Version version, uint64_t now_ms);
  void Drop();
  // Records staged.
  uint64_t staged() const { return count_; }

 private:
  absl::Status StageRecord(const v1::CheckpointRecord& record, std::span<const uint8_t> payload);
  absl::Status CommitTable(TableId table, Version version, uint64_t now_ms);

  ShardContents* const contents_;
  std::optional<TableId> table_;  // Of what is staged.
  uint64_t count_ = 0;            // Records.
};

}  // namespace lodestone::server
