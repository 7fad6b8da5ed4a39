// Where updates go when they have been applied: the write-ahead logs of the executors, if this ps keeps any, and the
// followers of its shards, if they have any. An update is acknowledged when both have it.
//
// Thread-safe once the gate is open.
//
// Ownership: owns the logs; the gate and the shards must outlive it, the sink must live as long as updates come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/planted_defect.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "proto/log.pb.h"
#include "server/store/replica_sink.h"
#include "server/store/serving_gate.h"
#include "server/wal/shard_log.h"

namespace lodestone::server {

class Shard;
class ShardSet;

// Where a commit has ended.
enum class CommitEnd { kLog, kFollowers };

class CommitLog {
 public:
  CommitLog(const ServingGate* gate, ShardSet* shards) : gate_(gate), shards_(shards) {}

  // Before the gate opens: the logs, one for each executor or none at all, and where updates of owned shards go to be
  // held by others too (null: nowhere).
  void Open(std::vector<std::unique_ptr<ShardLog>> logs);
  void SetReplicas(ReplicaSink* sink) { replicas_ = sink; }
  // Writes what waits, runs its callbacks and closes the logs. REQUIRES: the executors have stopped.
  void Close() { logs_.clear(); }

  // Whether updates go anywhere. What is true stays true. Of one shard, to be asked on its executor, once per update.
  bool HasLogOrFollowers() const { return !logs_.empty() || HasFollowers(); }
  // Whether the payload of a push may still be read once the push has been answered. What is false stays false; it is
  // not before the gate opens, when no push is taken.
  bool ReadsAfterAnswers() const {
    return !gate_->open() || !logs_.empty() || (replicas_ != nullptr && replicas_->always_engaged());
  }
  // How often each Append calls back.
  size_t ends() const { return (logs_.empty() ? 0 : 1) + (replicas_ == nullptr ? 0 : 1); }
  // The log of an executor; null if there are none.
  ShardLog* LogOf(size_t executor) const { return logs_.empty() ? nullptr : logs_[executor].get(); }

  // Fills in what every record of an update says that the shard has just applied, and begins the term of its owner with
  // the first of them. On its executor.
  void Stamp(Shard* shard, uint64_t now_ms, std::span<ShardLog::Record> records) const;
  // The same of an update that goes nowhere, and has no records: also what lives in memory alone may be lost, and what
  // its subscribers hold is of another term than what follows.
  void BeginTerm(Shard* shard) const;

  // Appends stamped records of shards of one executor, on that executor, and calls `done(CommitEnd, const
  // absl::Status&)` for each of ends(), perhaps within the call: when the log has them, and when the followers of
  // `positions` hold all up to there. Without records too: it waits for what was appended before. `keep` is what the
  // payloads lie in.
  template <typename Done>
  void Append(size_t executor, const std::vector<ShardLog::Record>& records,
              std::span<const ReplicaSink::Position> positions, std::shared_ptr<const void> keep, const Done& done) {
    if (HasFollowers()) {
      replicas_->Append(records, ReadsAfterAnswers() ? keep : nullptr);
      replicas_->Await(positions, [done](const absl::Status& status) { done(CommitEnd::kFollowers, status); });
    } else if (replicas_ != nullptr) {
      done(CommitEnd::kFollowers, absl::OkStatus());
    }
    ShardLog* const log = LogOf(executor);
    if (log == nullptr) return;
    if (Planted(Defect::kAckBeforeLog)) {
      done(CommitEnd::kLog, absl::OkStatus());
      return log->Append(records, std::move(keep), nullptr);
    }
    log->Append(records, std::move(keep), [done](const absl::Status& status) { done(CommitEnd::kLog, status); });
  }
  // Calls `done` once, perhaps within the call, when nothing that was applied to shards of one executor up to
  // `positions` could be taken back any more: the log has it, and so have the followers. Otherwise with the error of
  // either. On that executor.
  using Done = std::function<void(const absl::Status&)>;
  void AwaitCommitted(size_t executor, std::span<const ReplicaSink::Position> positions, Done done);
  // Stamps records that no caller waits for, and appends them wherever updates go. On the shard's executor.
  void AppendUnawaited(Shard* shard, uint64_t now_ms, std::vector<ShardLog::Record> records);

  // Appends a record of no shard to all logs, or to one, and hands it to followers; waits until it is durable, or does
  // not.
  absl::Status AppendToAll(const v1::LogRecord& record);
  void AppendToOneUnawaited(const v1::LogRecord& record);
  // The same without blocking: `done` is called when it is durable, perhaps within the call.
  void AppendToOne(const v1::LogRecord& record, std::function<void(const absl::Status&)> done);

  // As ReplicaSink.
  absl::Status CheckCopies(ShardId shard) const {
    return replicas_ == nullptr ? absl::OkStatus() : replicas_->CheckCopies(shard);
  }
  // Why no update should come now, or OK: the logs' reason, or also the followers'. Cheap.
  absl::Status log_health() const;
  absl::Status health() const;

  // Begins a new segment in each log, and deletes the segments before the marks that Roll returned.
  std::vector<uint64_t> Roll();
  void DropBefore(std::span<const uint64_t> marks);
  // Adds what pushes wait for, if that is the disk: the longest of the logs' waits.
  void FillWaits(v1::StatusResponse* status) const;
  // Sets the fields about the log.
  void FillStatus(v1::StorageStatus* status) const;
  // Bytes of records that the logs have got since the start, whether they are there still or not.
  uint64_t written_bytes() const;

 private:
  bool HasFollowers() const { return replicas_ != nullptr && replicas_->engaged(); }

  const ServingGate* const gate_;
  ShardSet* const shards_;

  // Constant once the gate is open. Executors still append when they end, so the logs outlive them.
  std::vector<std::unique_ptr<ShardLog>> logs_;  // By executor; empty: none.
  ReplicaSink* replicas_ = nullptr;              // Null: shards never have followers.
};

}  // namespace lodestone::server
