// All that a ps holds: its tables, the shards it owns, the executors that apply updates to them, and the workers'
// sessions. Knows no gRPC service; service.cc and broadcast.cc are the ways in and out.
//
// Thread-safe. Callbacks run on the calling thread or on an executor's, and must be quick.
//
// The store owns everything it holds; slices that it hands out keep the blocks they point into alive by themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_view.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "common/wire/message.h"
#include "grpcpp/support/slice.h"
#include "proto/admin.pb.h"
#include "proto/checkpoint.pb.h"
#include "proto/log.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/table.pb.h"
#include "server/shard/shard.h"
#include "server/shard/shard_role.h"
#include "server/shard/table_state.h"
#include "server/store/replica_sink.h"
#include "server/store/request_payload.h"
#include "server/store/worker_sessions.h"
#include "server/wal/wal_writer.h"

namespace lodestone::server {

class Store {
 public:
  struct Options {
    uint64_t seed = 1;
    uint32_t shards = 64;
    uint32_t executors = 1;
    uint64_t memory_max_bytes = 0;  // 0: no limit.
    const TimeSource* time = nullptr;
  };
  explicit Store(const Options& options);
  ~Store();  // Runs what is queued, then stops the executors.

  // Sets the shards that this ps owns, empty, and takes calls for them: AdoptShards and Serve. Without logs.
  void OwnShards(const std::vector<ShardId>& shards);

  // Before Serve: the terms (RouteResponse.terms) that updates of owned shards are of, by shard; 0 unless it is called.
  void SetTerms(const std::vector<uint64_t>& terms);

  // In three steps, for a ps that remembers. First: makes the shards, empty. Until Serve, every push and pull is
  // UNAVAILABLE. Call once.
  void AdoptShards(const std::vector<ShardId>& shards);
  // Then bring them back: creates a table (or finds it), as EnsureTables does.
  absl::Status AddTable(const v1::TableSpec& spec);
  // Runs `use` with an adopted shard on its executor, and waits.
  void UseShard(ShardId shard, const std::function<void(Shard*)>& use);
  // Applies a record of a log. Updates of other shards, and those that a shard has already, are skipped: false. Records
  // of one shard must come in order; those of several may come from several threads. DATA_LOSS or so, naming the shard,
  // if the record cannot be what happened to it.
  absl::StatusOr<bool> Replay(const v1::LogRecord& record, ByteView payload);
  void RestoreSessions(std::span<const Incarnation> open, Incarnation forgotten_max);
  // At last: from now on takes calls. Updates are appended to `logs`, one for each executor (or none at all), before
  // they are acknowledged.
  void Serve(std::vector<std::unique_ptr<ShardLog>> logs);

  // Whether the numbers of a push may still be read once it has been answered, by logs or by followers. What is false
  // stays false.
  bool ReadsAfterAnswers() const;

  // How many logs Serve wants.
  size_t executors() const;
  // All shards that are here in any role, ascending; of them, those whose content counts: owned, or followed and whole.
  std::vector<ShardId> adopted_shards() const;
  std::vector<ShardId> held_shards() const;
  ShardRole RoleOf(ShardId shard) const;

  // Following and taking over, while calls are served. One thread calls these, but for ReplayFollowed and TakeState,
  // which for one shard must not come together with each other or with the rest.
  //
  // Before Serve: where updates of owned shards go to be held by others too, and what is asked before anything is
  // answered for a shard (OK: this ps may).
  void SetReplicas(ReplicaSink* sink, std::function<absl::Status()> may_serve);
  // The term that an owned shard's updates are of from now on. On its executor.
  uint64_t OwnTermOf(ShardId shard) const;
  // Follows a shard from now on: whatever it was here before, it is not held until TakeState or ReplayFollowed says so.
  // RESOURCE_EXHAUSTED if there is no room for it.
  absl::Status Follow(ShardId shard);
  // A followed shard forgets all that it holds, and gets a state, as Shard's Restore… methods; then it is held, at this
  // version and term.
  void ClearState(ShardId shard);
  absl::Status TakeState(ShardId shard, const v1::CheckpointRecord& record, std::span<const uint8_t> payload);
  absl::Status FinishState(ShardId shard, Version version, uint64_t term);
  // How often a state was begun: what was written of it before says nothing of it now.
  uint64_t StatesOf(ShardId shard) const;
  // Applies an update of a held shard that its owner sent, and logs it. DATA_LOSS, naming the shard, if it does not
  // follow on what is here. News about the owner as a whole are taken too.
  absl::Status ReplayFollowed(const v1::LogRecord& record, const Payload& payload);
  void KnowSessions(std::span<const Incarnation> open, Incarnation forgotten_max);
  // Answers for a held shard from now on; its updates are of `term`.
  void Own(ShardId shard, uint64_t term);
  // Answers for it no longer: it is as after Follow.
  void Disown(ShardId shard);
  // Makes a shard's part of a table what `part` says, as one update, while pushes go on. OK, with the version that it
  // made: it is durable. UNAVAILABLE if the log cannot be written; it may have happened then, and is logged as soon as
  // the log is well. INVALID_ARGUMENT, and nothing has happened, if the part does not fit. REQUIRES: the shard is
  // owned.
  absl::StatusOr<Version> RollBack(ShardId shard, std::shared_ptr<const TablePart> part);

  // All tables, by name.
  std::vector<v1::TableSpec> table_specs() const;
  Sessions::Known sessions() const;
  // Begins a new segment in each log, and deletes the segments before the marks that RollLogs returned.
  std::vector<uint64_t> RollLogs();
  void DropLogsBefore(std::span<const uint64_t> marks);
  // Why a log takes nothing now, or OK.
  absl::Status log_health() const;
  // Sets the fields about the log.
  void FillLogStatus(v1::StorageStatus* status) const;

  // Creates tables and opens the session of `worker` (0: none). See ParameterServer.EnsureTables.
  absl::StatusOr<v1::EnsureTablesResponse> EnsureTables(const v1::EnsureTablesRequest& request);

  // Applies a push. `header.payload()` is empty: the numbers are in `numbers`. A push is checked whole before any shard
  // sees it: it is applied to all of its shards or refused. With logs, `done` runs when it is durable. UNAVAILABLE
  // while a log cannot be written: what was applied already is acknowledged when the push is sent again and the log is
  // well.
  using PushDone = std::function<void(absl::StatusOr<v1::PushResponse>)>;
  void Push(v1::PushRequest header, Numbers numbers, PushDone done);

  // Bytes of `header`'s parts in its payload, `keys` of them keys, for splitting PushPull's. NOT_FOUND or
  // INVALID_ARGUMENT as Push.
  absl::StatusOr<size_t> PushPayloadBytes(const v1::PushRequest& header, size_t* keys = nullptr) const;

  // Values for a pull: the answer without its payload, and the payload as slices in order.
  struct Values {
    v1::PullResponse header;
    std::vector<grpc::Slice> payload;
  };
  using PullDone = std::function<void(absl::StatusOr<Values>)>;
  void Pull(v1::PullRequest header, Numbers numbers, PullDone done);

  // What a subscriber wants of each shard.
  struct Subscription {
    struct Table {
      TableId id = 0;
      bool rows = false;
    };
    std::vector<Table> tables;
  };
  // Checks that all tables exist.
  absl::StatusOr<Subscription> MakeSubscription(const v1::SubscribeRequest& request) const;

  // A change of one shard: all that differs between `from_version` (or nothing: anchor) and `version`. Parts hold about
  // limits::kDeltaBytesTarget payload bytes at most, unless a single block or row has more.
  struct ShardChange {
    ShardId shard = 0;
    Version from_version = 0;
    Version version = 0;
    uint64_t term = 0;
    bool anchor = false;
    struct Piece {
      v1::Part part;
      std::vector<grpc::Slice> payload;
      size_t payload_bytes = 0;
    };
    std::vector<Piece> pieces;  // Empty if nothing of the subscription changed.
  };
  // What a subscriber holds of a shard: a version, which is the same update only within one term.
  struct Held {
    uint64_t term = 0;
    Version version = 0;
  };
  // Calls `done` with the change of `shard` since `from` (nullopt: an anchor), taken at one version of the shard. If
  // the past is no longer known (evicted keys forgotten, or an update of another owner's that was lost with it), an
  // anchor is returned instead. `done` is never called if the shard is lost to another owner meanwhile. REQUIRES: the
  // shard is here.
  void CollectChange(ShardId shard, const Subscription& subscription, std::optional<Held> from,
                     std::function<void(ShardChange)> done);

  // The shards owned, ascending; empty before OwnShards.
  std::vector<ShardId> owned_shards() const;
  // The newest version of an owned shard, without waiting for its executor.
  Version VersionOf(ShardId shard) const;
  // The name of a table. NOT_FOUND; UNAVAILABLE while this ps does not know the tables.
  absl::StatusOr<std::string> TableName(TableId table) const;
  // Rows and bytes of all tables on this ps.
  std::pair<uint64_t, uint64_t> Totals() const;
  // When `table`'s subscribers are to be served; nullopt if there is no such table.
  std::optional<v1::Broadcast> BroadcastOf(TableId table) const;
  // `listener` is called, on an executor's thread, each time a table has had its broadcast.every_pushes pushes. Call
  // once, before the first push.
  void SetBroadcastListener(std::function<void(TableId)> listener);
  // `listener` is told of each push that is refused, on the thread that refuses it. Call once, before the first push.
  void SetRefusalListener(std::function<void(Incarnation worker, const absl::Status& why)> listener);

  // Waits until all that was submitted has run. REQUIRES: nobody submits meanwhile.
  void Drain();

  // Once a second or so: evicts what has outlived its TTL, forgets idle sessions, measures rates.
  void Tick();

  // Fills server (what of it the store knows), tables, executors and sessions.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lodestone::server
