// The parts of a table as they were: read from a checkpoint, or rebuilt from what checkpoints and the log lead to. For
// psctl rollback.
//
// Thread safety: a PastParts is called by one thread at a time.
// Ownership: a PastParts owns what it reads from; what it returns stays.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "proto/log.pb.h"
#include "proto/table.pb.h"
#include "server/durability/recovery.h"
#include "server/shard/table_state.h"

namespace lodestone::server {

// What the table's part of a shard was; null if it is to stay as it is. DATA_LOSS, naming file and offset.
using PastParts = std::function<absl::StatusOr<std::shared_ptr<const TablePart>>(ShardId shard)>;

// The parts of `table` on `shards` in the checkpoint `name`. NOT_FOUND if it is not there, lacks a shard, or has no
// such table; FAILED_PRECONDITION if it is another cluster's than `cluster`, or the table is of another shape or
// optimizer; INVALID_ARGUMENT if no checkpoint is called that.
absl::StatusOr<PastParts> PartsInCheckpoint(const std::string& dir, const std::string& name,
                                            const v1::SegmentHeader& cluster, const v1::TableSpec& table,
                                            const std::vector<ShardId>& shards);

// The parts of `table` at version `recovery.until` of each of `shards`; shards that have not come to it stay as they
// are. Brings them back as a start would, in `executors` threads, and keeps them. Errors as Recover, and as above.
absl::StatusOr<PastParts> PartsAtVersion(const RecoveryOptions& recovery, size_t executors, const TimeSource* time,
                                         const v1::TableSpec& table, const std::vector<ShardId>& shards);

}  // namespace lodestone::server
