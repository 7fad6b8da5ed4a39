// The updates that bring a table's settings to its shards: each shard has settings of its own, which change by an
// update that is logged and replicated as any, so that a follower changes its rule between the same two pushes as its
// owner.
//
// Thread-safe as each method says. Ownership: all pointers must outlive the executors.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "proto/table.pb.h"
#include "server/store/table_map.h"
#include "server/wal/shard_log.h"

namespace lodestone::server {

class CommitLog;
class ServingGate;
class Shard;
class ShardSet;
class StepCloser;
class Table;
struct TableSettings;

// Whether a table that has `from` needs no new beginning of its steps for `to`.
bool StepsGoOn(const v1::Consistency& from, const v1::Consistency& to);

class SettingsUpdates {
 public:
  SettingsUpdates(const TimeSource* time, const ServingGate* gate, ShardSet* shards, CommitLog* log, StepCloser* closer)
      : time_(time), gate_(gate), shards_(shards), log_(log), closer_(closer) {}

  // The two that follow wait for the executors of owned shards.

  // Applies the steps of the table that have all their batches: so that the steps that shards tell are all that were
  // brought. The log's error if it cannot be written now.
  absl::Status ApplyCompleteSteps(const Table& table);
  // Does so too, and returns FAILED_PRECONDITION if contributions to another step wait then.
  absl::Status CheckNothingWaits(const Table& table);

  // The settings become those of the owned ones of `shards`, where these have settings of an earlier revision;
  // steps that cannot go on end before. Waits for their executors, and until the logs have the updates. The log's
  // error; UNAVAILABLE if a shard is just given up to another ps, and its steps would begin or end. A shard that failed
  // keeps the settings that it has.
  absl::Status Bring(const Table& table, const TableSettings* settings, std::span<const ShardId> shards);
  // Brings the settings of the tables to all owned shards, on their executors, later. What cannot be written then is
  // left undone.
  void BringLater(std::shared_ptr<const TableMap> tables);
  // Brings the tables' settings to a shard that this ps is about to answer for, and that may lack them: its former
  // owner ended or gave it up before it had them. So no contribution to a step comes to a shard that does not count
  // steps yet. On its executor.
  void Prepare(const TableMap& tables, Shard* shard);

 private:
  // What `use` returns of a shard, on its executor; OK without that if it is not owned.
  absl::Status OnOwned(ShardId shard, const std::function<absl::Status(Shard*)>& use);
  // Before a shard gets the consistency `next`: applies the step that has all of its batches, and what waits as it is,
  // if the steps end with that. On its executor. If this ps answers for the shard already (`served`), the log's error
  // if it cannot be written now.
  absl::Status EndSteps(const Table& table, const v1::Consistency& next, bool served, Shard* shard);
  // As an update of the shard, on its executor: the record of it, to be stamped. Nothing, and no update, if it has
  // the settings. The error of EndSteps.
  absl::StatusOr<std::vector<ShardLog::Record>> Change(const Table& table, const TableSettings* settings, bool served,
                                                       Shard* shard);
  // Change to the settings that the table has now, which is not waited for.
  absl::Status ChangeUnawaited(const Table& table, bool served, Shard* shard);
  // UNAVAILABLE for a shard that is given up, and whose steps would begin or end. On its executor.
  absl::Status CheckGivenUp(const Table& table, const TableSettings& settings, const Shard& shard) const;

  const TimeSource* const time_;
  const ServingGate* const gate_;
  ShardSet* const shards_;
  CommitLog* const log_;
  StepCloser* const closer_;
};

}  // namespace lodestone::server
