// The storage of a ps on disk: its folder, its checkpoints, their schedule and rollbacks; and how its shards
// are brought back from that.
//
// Life: Open takes the folder. Recover brings a store back, opens its logs and has it serve; it may take minutes. From
// then on checkpoints are written (each checkpoint.every_ms, when asked, and by Close) and tables are rolled back when
// asked, one after the other, on a thread of its own.
//
// Thread-safe, but for Recover and Close, which one thread calls. The store must outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "common/config/checkpoint_to_load.h"
#include "common/io/file.h"
#include "proto/admin.pb.h"
#include "proto/config.pb.h"
#include "server/durability/checkpoint_scheduler.h"
#include "server/durability/checkpoint_scrubber.h"
#include "server/durability/checkpointer.h"
#include "server/durability/data_dir.h"
#include "server/durability/table_rollback.h"
#include "server/monitoring/event_log.h"
#include "server/wal/update_log.h"

namespace lodestone::server {

struct RecoveryOptions;
struct RecoveryReport;
class Store;

class Storage {
 public:
  // Whether the configuration keeps anything on disk.
  static bool IsWanted(const v1::Config& config) {
    return !config.server().data_dir().empty() || !config.checkpoint().dir().empty();
  }
  // Null if not IsWanted. Errors as DataDir::Open. `time` (the store's) and `events` (may be null; gets checkpoints and
  // rollbacks) must outlive it. `calls`: by which logs are written and synced.
  static absl::StatusOr<std::unique_ptr<Storage>> Open(const v1::Config& config, const TimeSource* time,
                                                       EventLog* events = nullptr,
                                                       FileCalls calls = FileCalls::System());
  ~Storage();

  const DataDir& dir() const { return *dir_; }
  Checkpointer& checkpointer() { return checkpointer_; }
  // What the logs keep on the disk; null before Recover, and where there is no log. Lives as long as this. Any thread.
  UpdateLog* updates() const { return open_updates_.load(std::memory_order_acquire); }

  // Brings back the shards as they were, however the life before ended, and serves them; and of `copies`, shards of
  // others that nobody serves, what is on the disk, as followed ones. DATA_LOSS, naming file and
  // offset, if something acknowledged cannot be brought back; CANCELLED after Stop.
  absl::Status Recover(Store* store, const std::vector<ShardId>& shards, const std::vector<ShardId>& copies = {});

  // Has the disk know that the logs may hold updates of shards that another ps owns, before they do. UNAVAILABLE before
  // the ps is back; the errors of files. Any thread.
  absl::Status NoteShared();
  // Whether the disk knows. Any thread.
  bool shared() const { return shared_.load(std::memory_order_acquire); }
  // The generation of this life, as the disk has it; 0: it has not begun. Any thread.
  uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

  // Writes a checkpoint (named "": as the next periodic one) and returns when it is complete. UNAVAILABLE before the ps
  // is back, and when it ends.
  absl::StatusOr<v1::CheckpointResponse> Checkpoint(const std::string& name);
  // Removes this ps's part of a checkpoint that was named. Likewise.
  absl::Status RemoveCheckpoint(const std::string& name);
  // Writes the shards that came from another ps soon: nothing of them is in the ps's folder. Where it has none, nothing
  // is lost by waiting for the next periodic checkpoint.
  void WriteArrivedSoon();
  // Brings a table back to what it was and returns when that is durable. See TableRollback::Run. UNAVAILABLE before the
  // ps is back, and when it ends.
  absl::StatusOr<v1::RollbackResponse> Rollback(const v1::RollbackRequest& request);

  // Makes Recover, a checkpoint and a rollback under way, return soon.
  void Stop();
  // The same of a rollback alone, and of all later ones: CANCELLED.
  void StopRollback() { rollback_.Stop(); }
  // Writes the last checkpoint, if the configuration wants it and something has changed, and ends the thread. Call when
  // no push can come any more.
  void Close();

  // Why pushes cannot be made durable now, or OK.
  absl::Status health() const;
  // Sets storage, and adds the waits.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  Storage(const v1::Config& config, const TimeSource* time, EventLog* events, std::unique_ptr<DataDir> dir,
          FileCalls calls);

  RecoveryOptions OptionsOfRecovery();
  // Begins this life's generation and, if it goes back, lineages, on the disk too.
  absl::Status BeginLife(const RecoveryReport& report, Store* store);
  // Has the ps not go back where all of `shards`, its own, have gone back to the checkpoint already, on whichever ps.
  // FAILED_PRECONDITION if some have, and others have not.
  absl::Status SettleGoingBack(const std::vector<ShardId>& shards);
  // Notes beside the checkpoint that the shards of this ps have gone back to it.
  absl::Status NoteOwnedGoneBack(const Store& store) const;
  // Gives the ps and all shards the lineages of this life.
  absl::Status BeginLineages(bool goes_back, const RecoveryReport& report, Store* store);
  void SetWait(std::string what);

  // Constant after construction.
  const v1::Config config_;
  const CheckpointToLoad load_;  // checkpoint.load; no name: none.
  const TimeSource* const time_;
  EventLog* const events_;
  const std::unique_ptr<DataDir> dir_;
  const FileCalls calls_;

  std::atomic<bool> stop_{false};
  std::unique_ptr<UpdateLog> updates_;  // Made by Recover.
  std::atomic<UpdateLog*> open_updates_{nullptr};
  std::atomic<bool> shared_{false};      // NoteShared was well.
  std::atomic<uint64_t> generation_{0};  // Of the life that has begun.
  Checkpointer checkpointer_;
  TableRollback rollback_;

  mutable Mutex mu_;
  Store* store_ ABSL_GUARDED_BY(mu_) = nullptr;  // Null until it is recovered.
  uint64_t replayed_records_ ABSL_GUARDED_BY(mu_) = 0;
  double recovery_seconds_ ABSL_GUARDED_BY(mu_) = 0;
  std::string wait_ ABSL_GUARDED_BY(mu_);
  int64_t wait_since_ms_ ABSL_GUARDED_BY(mu_) = 0;

  CheckpointScheduler scheduler_;  // Its thread uses all of the above.
  CheckpointScrubber scrubber_;    // Last: its thread uses that too.
};

}  // namespace lodestone::server
