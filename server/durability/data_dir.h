// What a ps keeps on disk: its folder, its logs, its checkpoints; and how it comes back from them.
//
// Life: Open takes the folder, which then is this process's alone. Recover brings a store back, opens its logs and lets
// it take calls; it may take minutes. From then on checkpoints are written (each checkpoint.every_ms, when asked, and
// by Close) and tables go back when asked, one after the other, on a thread of its own.
//
// Thread-safe, but for Recover and Close, which one thread calls. The store must outlive it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "common/io/file.h"
#include "proto/admin.pb.h"
#include "proto/config.pb.h"
#include "proto/coordinator_state.pb.h"
#include "proto/log.pb.h"
#include "server/checkpoint/checkpoint_writer.h"
#include "server/durability/table_history.h"
#include "server/monitoring/event_log.h"
#include "server/store/store.h"

namespace lodestone::server {

// What an acknowledged push survives by this configuration: AUTO resolved.
v1::ClusterConfig::Durability DurabilityOf(const v1::Config& config);

class Storage {
 public:
  // Whether the configuration keeps anything on disk.
  static bool IsWanted(const v1::Config& config) {
    return !config.server().data_dir().empty() || !config.checkpoint().dir().empty();
  }
  // Null if not IsWanted. UNAVAILABLE if another process has the folder; FAILED_PRECONDITION
  // if it is another cluster's or server's; the errors of files. `time`: the store's, must outlive this.
  static absl::StatusOr<std::unique_ptr<Storage>> Open(const v1::Config& config, const TimeSource* time);
  ~Storage();

  // Drawn for this life of the ps, and for the one before in the same folder (0: there was none): what its Join says.
  uint64_t token() const { return state_.member_token(); }
  uint64_t former_token() const { return former_token_; }

  // What checkpoints are to keep of the coordinator; call before Recover. And what the newest one has kept; nullopt if
  // none has.
  void KeepCoordinator(std::function<v1::CoordinatorState()> state) { coordinator_ = std::move(state); }
  absl::StatusOr<std::optional<v1::CoordinatorState>> CoordinatorOfCheckpoints() const;

  // Brings back the shards as they were, whatever ended the life before, and serves them. DATA_LOSS, naming file and
  // offset, if something acknowledged cannot be brought back; CANCELLED after Stop.
  absl::Status Recover(Store* store, const std::vector<ShardId>& shards);

  // Writes a checkpoint (named "": as the next periodic one) and returns when it is complete. UNAVAILABLE before the ps
  // is back, and when it ends.
  absl::StatusOr<v1::CheckpointResponse> Checkpoint(const std::string& name);

  // Whether a checkpoint has what was taken of a shard from another ps, or nothing needs to be on the disk. Any thread.
  bool HoldsStateOf(ShardId shard) const;
  // Is called after each periodic checkpoint, on the thread that wrote it. Call before Recover.
  void SetCheckpointListener(std::function<void()> listener) { checkpoint_listener_ = std::move(listener); }

  // Where checkpoints and rollbacks are told; must outlive this. Call before Recover.
  void SetEvents(EventLog* events) { events_ = events; }

  // Writes a periodic checkpoint before it is due: much of what is here is not on the disk. Where there is no log,
  // nothing is lost by waiting.
  void CheckpointSoon();

  // Brings a table back to what it was and returns when that is durable. See Admin.Rollback. UNAVAILABLE before the ps
  // is back, and when it ends.
  absl::StatusOr<v1::RollbackResponse> Rollback(const v1::RollbackRequest& request);

  // Makes Recover, a checkpoint and a rollback under way, return soon.
  void Stop();
  // The same of a rollback alone, and of all later ones: CANCELLED.
  void StopRollback() { stop_rollback_.store(true); }
  // Writes the last checkpoint, if the configuration wants it and something has changed, and ends the thread. Call when
  // no push can come any more.
  void Close();

  // Why pushes cannot be made durable now, or OK.
  absl::Status health() const;
  // Sets storage, and adds the waits.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  struct Job {
    std::function<absl::Status()> run;
    std::optional<absl::Status> result;
  };

  Storage(const v1::Config& config, const TimeSource* time);

  absl::Status TakeFolder();
  absl::Status LoadState();
  absl::Status SaveState();
  v1::SegmentHeader Header() const;
  // The logs in server.data_dir of servers beyond cluster.servers.
  std::vector<std::pair<uint32_t, std::string>> FormerLogs() const;
  absl::StatusOr<std::vector<std::unique_ptr<ShardLog>>> OpenLogs(size_t count) const;
  void StartCheckpoints();
  void RunCheckpoints();
  // Has `run` run on the checkpoint thread, and waits.
  absl::Status RunJob(std::function<absl::Status()> run);
  absl::StatusOr<v1::CheckpointResponse> WriteCheckpoint(const std::string& name);
  absl::StatusOr<v1::RollbackResponse> RollBackTable(const v1::RollbackRequest& request);
  // Where the table is taken from.
  absl::StatusOr<PastParts> OpenPast(const v1::RollbackRequest& request, const v1::TableSpec& table);
  // Deletes the segments that the last two checkpoints make superfluous.
  void DropSegments(std::vector<uint64_t> rolled);
  bool Changed() const;
  absl::StatusOr<Shard::State> Collect(ShardId shard, const Version* after);
  bool HasLog() const { return durability_ != v1::ClusterConfig::MEMORY && !dir_.empty(); }
  void SetWait(std::string what);
  void Tell(absl::string_view kind, absl::string_view text) const;

  // Constant after construction.
  const v1::Config config_;
  const TimeSource* const time_;
  const v1::ClusterConfig::Durability durability_;
  std::string dir_;             // Of this ps; empty: nothing but checkpoints is kept.
  std::string checkpoint_dir_;  // Of all.

  // Constant once recovered.
  std::optional<File> lock_;
  uint64_t former_token_ = 0;
  std::function<v1::CoordinatorState()> coordinator_;  // Empty: the coordinator is elsewhere.
  v1::ServerState state_;
  Store* store_ = nullptr;
  uint64_t replayed_records_ = 0;
  uint64_t base_generation_ = 0;  // Of this ps: its shards started from checkpoints of that start or later; 0: unknown.
  double recovery_seconds_ = 0;

  std::function<void()> checkpoint_listener_;  // Empty: nobody listens.
  EventLog* events_ = nullptr;                 // Null: nobody reads them.

  std::vector<std::atomic<uint64_t>>
      written_states_;  // By shard: ShardSet::StateGeneration in the newest periodic checkpoint.
  std::atomic<bool> stop_{false};
  std::atomic<bool> stop_rollback_{false};

  // Owned by the checkpoint thread; before it starts and after it has ended, by Recover and Close.
  std::unique_ptr<CheckpointWriter> writer_;
  std::deque<std::vector<uint64_t>> rolled_;  // Where each log was rolled for the newest checkpoints.
  std::vector<Version> written_versions_;     // By shard: of the newest checkpoint.
  std::vector<uint64_t> collected_states_;    // By shard: ShardSet::StateGeneration in the one that is being written.
  bool failure_told_ = false;                 // That a periodic one failed, and none since has not.

  mutable Mutex mu_;
  CondVar changed_;
  bool recovered_ ABSL_GUARDED_BY(mu_) = false;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<std::chrono::steady_clock::time_point> soon_at_ ABSL_GUARDED_BY(mu_);  // See CheckpointSoon.
  std::deque<Job*> jobs_ ABSL_GUARDED_BY(mu_);  // Of callers that wait; their results are guarded too.
  std::string wait_ ABSL_GUARDED_BY(mu_);
  int64_t wait_since_ms_ ABSL_GUARDED_BY(mu_) = 0;
  v1::StorageStatus checkpoints_ ABSL_GUARDED_BY(mu_);  // The fields about them, but for the age.
  int64_t checkpoint_ms_ ABSL_GUARDED_BY(mu_) = 0;      // When the newest was complete.
  std::thread thread_;
};

}  // namespace lodestone::server
