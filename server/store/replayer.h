// Updates that do not come from workers: those of a log after a restart, those that a followed shard's owner sends, and
// rollbacks of a table.
//
// Thread-safe as each method says; those of following are called by one thread, but for ReplayFollowed and
// RestoreRecord, which for one shard must not run together with each other or with the rest.
//
// Ownership: all pointers must outlive the replayer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_view.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "common/wire/message.h"
#include "proto/checkpoint.pb.h"
#include "proto/log.pb.h"
#include "server/shard/table_state.h"

namespace lodestone::server {

class Catalog;
class CommitLog;
class ServingGate;
class Sessions;
class ShardSet;

class Replayer {
 public:
  Replayer(const TimeSource* time, const ServingGate* gate, ShardSet* shards, CommitLog* log, Catalog* catalog,
           Sessions* sessions)
      : time_(time), gate_(gate), shards_(shards), log_(log), catalog_(catalog), sessions_(sessions) {}

  // Recovery, before the gate opens. Applies a record of a log. Updates of other shards, and those that a shard has
  // already, are skipped: false. Records of one shard must come in order; those of several may come from several
  // threads. DATA_LOSS or another error, naming the shard, if the record cannot be what happened to it.
  absl::StatusOr<bool> Replay(const v1::LogRecord& record, ByteView payload);
  // Whether a worker of which a shard has marks has a session. One that is not known gets one, unless it may have
  // ended.
  bool KeepSession(Incarnation worker);
  // Sessions that a checkpoint holds, the newest that was forgotten, and workers above it that have ended.
  void RestoreSessions(std::span<const Incarnation> open, Incarnation forgotten_max,
                       std::span<const Incarnation> ended = {});

  // Following, while calls are served. Follows a shard from now on: whatever it was here before, it is not held until
  // FinishState. RESOURCE_EXHAUSTED if there is no room for it.
  absl::Status Follow(ShardId shard);
  // Holds a shard no more, and frees what it held. REQUIRES: it is not owned, and nothing follows it any more.
  void Unfollow(ShardId shard);
  // A followed shard forgets all that it holds, and gets a state, record by record (shard_restore.h); then it is held,
  // at this version and term. `lineage`: its owner's (0: unknown).
  void ClearState(ShardId shard, uint64_t lineage = 0);
  absl::Status RestoreRecord(ShardId shard, const v1::CheckpointRecord& record, std::span<const uint8_t> payload);
  absl::Status FinishState(ShardId shard, Version version, uint64_t term);
  // Applies an update of a held shard that its owner sent, and logs it. DATA_LOSS, naming the shard, if it does not
  // follow on what is here; UNAVAILABLE, and the shard is as it was, if it cannot be logged. Records of the owner that
  // are of no shard are applied too.
  absl::Status ReplayFollowed(const v1::LogRecord& record, const Payload& payload);
  // Sessions that the owner has, in addition to those that are known here; but for those that were forgotten here, or
  // whose workers have ended.
  void AddSessions(std::span<const Incarnation> open, Incarnation forgotten_max,
                   std::span<const Incarnation> ended = {});

  // Makes a shard's part of a table what `part` says, as one update, while pushes go on. OK, with the version that it
  // made: it is durable. UNAVAILABLE if the log cannot be written; it may have happened then, and is logged as soon as
  // the log is well. INVALID_ARGUMENT, and nothing has happened, if the part does not fit. REQUIRES: the shard is
  // owned.
  absl::StatusOr<Version> RollBack(ShardId shard, std::shared_ptr<const TablePart> part);

 private:
  // Whether a record is to be applied: not if the shard is not here, or has it. DATA_LOSS if it does not follow on what
  // the shard holds.
  absl::StatusOr<bool> IsNext(const v1::LogRecord& record) const;
  // Applies an update that is; false if more pieces of it must follow.
  absl::StatusOr<bool> ReplayUpdate(const v1::LogRecord& record, ByteView payload);
  absl::Status ReplayPush(const v1::LogRecord& record, ByteView payload);
  // False if more pieces must follow.
  absl::Status ReplaySettings(const v1::LogRecord& record);
  absl::StatusOr<bool> ReplayRestored(const v1::LogRecord& record, ByteView payload);

  const TimeSource* const time_;
  const ServingGate* const gate_;
  ShardSet* const shards_;
  CommitLog* const log_;
  Catalog* const catalog_;
  Sessions* const sessions_;
};

}  // namespace lodestone::server
