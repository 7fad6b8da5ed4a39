// All that a ps holds, without gRPC: its tables, the shards it owns or follows, the workers' sessions, and the ways of
// pushes, pulls, broadcasts and replayed updates through them. This class owns the parts, connects them and hands them
// out; shard_set.h is the one to read first, then push_path.h and pull_path.h.
//
// Thread-safe as its parts are. Callbacks run on the calling thread or on an executor's, and must be quick.
//
// Ownership: owns all parts; slices that they hand out keep the blocks they point into alive.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "proto/parameter_server.pb.h"
#include "server/shard/executor.h"
#include "server/store/catalog.h"
#include "server/store/commit_log.h"
#include "server/store/delta_path.h"
#include "server/store/order_fence.h"
#include "server/store/pull_path.h"
#include "server/store/push_path.h"
#include "server/store/replayer.h"
#include "server/store/serving_gate.h"
#include "server/store/sessions.h"
#include "server/store/shard_set.h"
#include "server/store/step_closer.h"
#include "server/store/step_waits.h"
#include "server/store/sweeper.h"
#include "server/wal/shard_log.h"

namespace lodestone::server {

class Store {
 public:
  struct Options {
    uint64_t seed = 1;
    uint32_t shards = 64;
    uint32_t executors = 1;
    int64_t turn_ns = Executors::kTurnNs;
    uint64_t memory_max_bytes = 0;            // Of the process; 0: no limit.
    std::function<uint64_t()> process_bytes;  // What it takes; null: not known, and tables alone count.
    const TimeSource* time = nullptr;
    bool committed_reads = false;  // Pulls and deltas show only what no death could take back: cluster.reads.
  };
  explicit Store(const Options& options);
  ~Store();  // Runs what is queued, then stops the executors and closes the logs.
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  ServingGate& gate() { return gate_; }
  ShardSet& shards() { return shards_; }
  CommitLog& log() { return log_; }
  Catalog& tables() { return tables_; }
  Sessions& sessions() { return sessions_; }
  PushPath& pushes() { return pushes_; }
  PullPath& pulls() { return pulls_; }
  DeltaPath& deltas() { return deltas_; }
  Replayer& replayer() { return replayer_; }
  const ShardSet& shards() const { return shards_; }
  const CommitLog& log() const { return log_; }
  const Catalog& tables() const { return tables_; }
  const Sessions& sessions() const { return sessions_; }

  // A ps that remembers starts in three steps: shards().Adopt; tables(), shards().Run and replayer() to bring their
  // contents back; and Serve, which opens the gate. Updates are appended to `logs`, one for each executor or none at
  // all, before they are acknowledged. Call once.
  void Serve(std::vector<std::unique_ptr<ShardLog>> logs);
  // All at once for a ps without logs: the shards that it owns, empty.
  void OwnShards(const std::vector<ShardId>& shards);

  // Opens the session of a worker (0: none), and creates tables. See ParameterServer.EnsureTables.
  absl::StatusOr<v1::EnsureTablesResponse> EnsureTables(const v1::EnsureTablesRequest& request);
  // The same without blocking. `done` is called on this thread or a log's if all tables exist, else on the thread that
  // makes tables, one request after the other. UNAVAILABLE for what waits there at EndSlowWork.
  using EnsureDone = std::function<void(absl::StatusOr<v1::EnsureTablesResponse>)>;
  void EnsureTables(v1::EnsureTablesRequest request, EnsureDone done);
  // The coordinator has given an incarnation, to this ps or another process.
  void NoteGiven(Incarnation incarnation) { sessions_.NoteGiven(incarnation, time_->NowMs()); }
  // The coordinator counts so many changes of the order of steps (JoinResponse.orders).
  void NoteOrders(uint64_t orders) { order_fence_.Note(orders); }
  // Admin.SetTable. Does not block; `done` runs on a thread of the store's, or within the call.
  using SetTableDone = std::function<void(absl::StatusOr<v1::SetTableResponse>)>;
  void SetTable(v1::SetTableRequest request, SetTableDone done);

  // Keeps the sessions of ranges that are open and of workers that live, as the coordinator tells, as if these had
  // called.
  void KeepSessions(std::span<const Incarnation> open);
  // Ends the sessions of workers that have left or died, as the coordinator tells: soon, not within the call, because
  // the log may be slow.
  void EndSessions(std::span<const Incarnation> workers);

  // Tick sweeps no more: see Sweeper::Stop. Nor is a step applied by itself.
  void StopSweeps() {
    sweeper_.Stop();
    closer_.Stop();
  }
  // No tables are made, changed or described any more, nor sessions ended: what is asked for fails with UNAVAILABLE.
  // The one that is being made is waited for. What the log sends to must outlive the call.
  void EndSlowWork();
  // Ends the pulls that wait for steps, and those that come, with UNAVAILABLE.
  void StopWaits() { waits_.Stop(); }
  // Runs what is due by the time that it was given: for tests that move that by hand.
  void CheckTime() { timer_.CheckTime(); }
  // About once a second: evicts what has outlived its TTL, forgets idle sessions, measures rates and memory.
  void Tick();

  // Fills server (what of it the store knows), tables, executors and sessions; adds to the waits.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  absl::Status OpenSession(const v1::EnsureTablesRequest& request);
  // Catalog::Set, if it comes in time.
  absl::StatusOr<v1::SetTableResponse> SetInTime(const v1::SetTableRequest& request);
  // Adds the tables that the request wants to be described.
  void Describe(const v1::EnsureTablesRequest& request, v1::EnsureTablesResponse* response) const;
  // Ensures all tables if they exist as requested; null if one does not.
  absl::StatusOr<std::optional<v1::EnsureTablesResponse>> FindTables(const v1::EnsureTablesRequest& request) const;
  absl::StatusOr<v1::EnsureTablesResponse> MakeTables(const v1::EnsureTablesRequest& request);
  // Runs `work` on the thread for what takes long; false once the store ends.
  bool SubmitToThread(std::function<void()> work);
  bool ending() const;

  const TimeSource* const time_;

  // Each synchronises itself.
  ServingGate gate_;
  OrderFence order_fence_;
  Catalog tables_;  // Outlives the shards' parts of its tables.
  ShardSet shards_;
  CommitLog log_;
  Sessions sessions_;
  OnDemandTimer timer_;
  StepWaits waits_;
  StepCloser closer_;
  PushPath pushes_;
  PullPath pulls_;
  DeltaPath deltas_;
  Replayer replayer_;
  Sweeper sweeper_;

  mutable Mutex slow_work_mu_;
  bool ending_ ABSL_GUARDED_BY(slow_work_mu_) = false;
  std::unique_ptr<Executor> slow_work_;  // On a thread of its own: tables are made, sessions ended. Ends first.
};

}  // namespace lodestone::server
