// The checkpoints of one ps: what of its shards goes into them, what is known to be in them, and the log segments that
// they make superfluous.
//
// Thread safety: one thread at a time calls Open, StartFrom, Write, WriteArrived, LogIsLong, Replace and Changed; any
// thread the others. The setters come before Open. `dir`, `time`, `events` and the store must outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "proto/checkpoint.pb.h"
#include "proto/config.pb.h"
#include "proto/coordinator_state.pb.h"
#include "server/durability/data_dir.h"
#include "server/monitoring/event_log.h"
#include "server/wal/update_log.h"

namespace lodestone::server {

class CheckpointWriter;
class Store;

// By how much the log of a ps grows between checkpoints where checkpoint.every_log_bytes leaves that to it. 0 volume
// bytes: unknown.
uint64_t LogBytesBetweenCheckpoints(uint64_t table_bytes, uint64_t volume_bytes);

class Checkpointer {
 public:
  // `events` may be null.
  Checkpointer(const v1::Config& config, const DataDir* dir, const TimeSource* time, EventLog* events);
  ~Checkpointer();

  // Has checkpoints keep what `state` returns of the coordinator.
  void KeepCoordinator(std::function<v1::CoordinatorState()> state) { coordinator_ = std::move(state); }
  // Has checkpoints keep what `mark_at` returns: the mark of the update that made a shard's version, or 0. It is called
  // on the shard's executor.
  void KeepMarks(std::function<uint64_t(ShardId, Version)> mark_at) { mark_at_ = std::move(mark_at); }
  // Is called after each periodic checkpoint and each of what has arrived, on the thread that wrote it.
  void SetListener(std::function<void()> listener) { listener_ = std::move(listener); }
  // What the newest checkpoint of any ps keeps of the coordinator; nullopt if none does. DATA_LOSS, naming it.
  absl::StatusOr<std::optional<v1::CoordinatorState>> CoordinatorInCheckpoints() const;

  // From now on `store`, whose shards have been brought back, can be written. The errors of files.
  absl::Status Open(Store* store);
  // What the shards were brought back from: the versions in their checkpoints (by shard), the oldest start of this ps
  // whose checkpoint was used (0: unknown), and how much of logs was applied to them.
  void StartFrom(std::vector<Version> versions, uint64_t base_generation, uint64_t log_bytes);
  // Log segments stay while `updates` is held. It must outlive the thread that calls Write.
  void KeepHeldSegmentsOf(UpdateLog* updates) { updates_ = updates; }

  // Writes a checkpoint (named "": as the next periodic one), and tells which shards are in it: one that leaves this ps
  // meanwhile is not. UNAVAILABLE while another one is written; CANCELLED after
  // Stop; ALREADY_EXISTS or INVALID_ARGUMENT for a name; the errors of files.
  absl::StatusOr<v1::CheckpointResponse> Write(const std::string& name);
  // Writes the shards that came from another ps since the last checkpoint, if there are any, and no others. Errors as
  // Write.
  absl::Status WriteArrived();
  // Writes a periodic checkpoint in the place of periodic ones that are damaged, unless it was told of all of them
  // before. Errors as Write.
  absl::Status Replace(const std::vector<std::string>& damaged);
  // Removes what this ps has written of a named checkpoint, if it is there. Errors as CheckpointWriter::Remove.
  absl::Status Remove(const std::string& name);
  // Whether the log has grown so much since the newest periodic one that the next is not to wait for its time.
  bool LogIsLong() const;
  // Whether a shard is not as it is in the newest checkpoint, or that is to be replaced.
  bool Changed() const;
  // Whether a checkpoint has what was taken of a shard from another ps, or nothing needs to be on the disk.
  bool HoldsStateOf(ShardId shard) const;

  // Makes a Write that is under way, and all later ones, return CANCELLED soon.
  void Stop();
  // Sets the fields about checkpoints.
  void FillStatus(v1::StorageStatus* status) const;

 private:
  enum class Kind { kPeriodic, kArrived, kNamed };

  // Writes a checkpoint of these shards, and tells of it, but for what is of one of all shards.
  absl::StatusOr<v1::CheckpointResponse> WriteShards(Kind kind, const std::string& name, std::vector<ShardId> shards);
  // Whether a checkpoint has what was taken of a shard from another ps.
  bool IsStateWritten(ShardId shard) const;
  void Describe(v1::ServerManifest* manifest) const;
  // Notes that the shards of `manifest` are in a checkpoint.
  void NoteWritten(const v1::ServerManifest& manifest, Kind kind);
  // Logs which old ones stay (CheckpointWriter::Result), if they are others than before.
  void LogStay(const std::vector<std::string>& stay);
  void NoteFailure(Kind kind, const std::string& name, const absl::Status& status);
  // What went wrong last, while nothing of that kind has gone well since.
  std::string& ErrorOf(Kind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Deletes the segments that the last two checkpoints make superfluous; those that are held, later.
  void DropSegments(std::vector<uint64_t> rolled);
  void AddEvent(absl::string_view kind, absl::string_view text) const;

  // Constant after construction.
  const v1::Config config_;
  const DataDir* const dir_;
  const TimeSource* const time_;
  EventLog* const events_;

  // Constant after Open.
  std::function<v1::CoordinatorState()> coordinator_;  // Empty: the coordinator is elsewhere.
  std::function<void()> listener_;                     // May be empty.
  std::function<uint64_t(ShardId, Version)> mark_at_;  // May be empty.
  Store* store_ = nullptr;

  // By shard: ShardSet::StateGeneration in the newest checkpoint that is not named.
  std::vector<std::atomic<uint64_t>> written_states_;
  // Bytes of the logs since the newest periodic one that are of earlier lives; and of this life before it.
  std::atomic<uint64_t> former_log_bytes_{0};
  std::atomic<uint64_t> logged_bytes_{0};

  // Owned by the thread that calls Write.
  UpdateLog* updates_ = nullptr;
  uint64_t base_generation_ = 0;
  std::deque<std::vector<uint64_t>> rolled_;  // Where each log was rolled for the newest checkpoints.
  uint32_t arrived_ = 0;                      // Those of what has arrived, since the newest periodic one.
  std::vector<Version> written_versions_;     // By shard: of the newest checkpoint.
  std::vector<uint64_t> collected_states_;    // By shard: ShardSet::StateGeneration in the one that is being written.
  std::vector<MarkedVersion> collected_;      // By shard: the update that made what is in it.
  // The same of the newest periodic ones, at most checkpoint.keep: the first is what the next one builds on.
  std::deque<std::vector<uint64_t>> base_states_;
  std::vector<std::string> stay_;  // As logged last.
  bool failing_ = false;           // The last periodic one failed.
  bool replacing_ = false;         // One in the place of damaged ones is wanted.

  mutable Mutex mu_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  // Constant after Open, but for Stop, which may come before and meanwhile.
  std::unique_ptr<CheckpointWriter> writer_;
  v1::StorageStatus status_ ABSL_GUARDED_BY(mu_);  // But for the age and the error.
  std::string error_ ABSL_GUARDED_BY(mu_);         // See ErrorOf.
  std::string arrived_error_ ABSL_GUARDED_BY(mu_);
  int64_t written_ms_ ABSL_GUARDED_BY(mu_) = 0;  // When the newest was complete.
};

}  // namespace lodestone::server
