// The folder of one ps, server.data_dir/ps-INDEX: its lock, its state file and the logs in it.
//
// Thread safety: not thread-safe until SaveState has returned in recovery; the const methods may be called by any
// thread from then on. Ownership: holds the folder's lock while it lives: no other process can open the folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/file.h"
#include "proto/config.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/log.pb.h"
#include "server/wal/shard_log.h"

namespace lodestone::server {

// What an acknowledged push survives by this configuration: AUTO resolved.
v1::ClusterConfig::Durability DurabilityOf(const v1::Config& config);

class DataDir {
 public:
  // Locks the folder and reads its state; makes both where there are none. Where server.data_dir is empty there is no
  // folder, and nothing but checkpoints is kept. UNAVAILABLE if another process has the folder; FAILED_PRECONDITION if
  // it is another cluster's or server's; DATA_LOSS if its state is damaged; the errors of files.
  static absl::StatusOr<std::unique_ptr<DataDir>> Open(const v1::Config& config);

  // Empty: there is no folder.
  const std::string& path() const { return path_; }
  // Of all ps; empty: no checkpoints are written.
  const std::string& checkpoint_dir() const { return checkpoint_dir_; }
  // Empty: there is no folder.
  std::string log_dir() const { return path_.empty() ? "" : path_ + "/log"; }
  bool has_log() const { return durability_ != v1::ClusterConfig::MEMORY && !path_.empty(); }
  v1::ClusterConfig::Durability durability() const { return durability_; }
  // Whether the disk has an update before it is acknowledged, or confirmed to its owner.
  bool syncs_log() const { return durability_ == v1::ClusterConfig::MACHINE; }

  // Drawn for this life of the ps, and for the one before in the same folder (0: there was none).
  uint64_t token() const { return state_.member_token(); }
  uint64_t former_token() const { return former_token_; }
  // What a Join says of it. Where only checkpoints are kept, their folder stands for it.
  v1::ServerData data() const;
  // The boot of the machine in which the life before, which did not sync its logs, began to write them; until SetBegun.
  // Empty: there was none, or it did.
  std::string unsynced_boot() const { return state_.synced() || state_.closed() ? "" : state_.boot(); }
  // Whether it may lack the end of what was in it.
  bool cut_short() const { return whole_.has_value() && !*whole_; }
  uint64_t lineage() const { return state_.lineage(); }
  uint64_t generation() const { return state_.generation(); }
  // The logs of this generation and of those before have been sealed (LogReader::Seal).
  uint64_t sealed_generation() const { return state_.sealed_generation(); }
  // cluster.servers when the ps last came back (0: it never did), and whether its logs may hold updates of shards that
  // it followed.
  uint32_t servers() const { return state_.servers(); }
  bool has_followed() const { return state_.followed(); }
  // Whether the shards that this ps owns go back to checkpoint.load in this life, until SetLoaded: they have not in one
  // before. It is to bring back no copies of others' then: these need not go back, and files of this ps would rank
  // above theirs.
  bool goes_back() const;

  // In memory alone, until SaveState.
  void SetLineage(uint64_t lineage) { state_.set_lineage(lineage); }
  void SetGeneration(uint64_t generation) { state_.set_generation(generation); }
  void SetSealed(uint64_t generation) { state_.set_sealed_generation(generation); }
  // The ps has come back with the configuration's servers and replicas.
  void SetServers();
  // Its logs may hold updates of shards that another ps owns, from now on.
  void SetShared() { state_.set_followed(true); }
  // Its logs are written from now on, in this boot of the machine, with its arithmetic.
  void SetBegun();
  // The ps ends, and nothing writes to its logs any more: waits until the disk has them, and notes that in the state
  // file.
  absl::Status NoteClosed();
  void SetLoaded(const std::string& checkpoint) { state_.set_loaded(checkpoint); }
  // Replaces the state file. OK, and nothing is written, where there is no folder.
  absl::Status SaveState();

  // What all files of this life bear.
  v1::SegmentHeader Header() const;
  // The log folders in server.data_dir of servers beyond cluster.servers, by index.
  std::vector<std::pair<uint32_t, std::string>> FormerLogs() const;
  // The logs that this life appends to by `calls`; none without a log.
  absl::StatusOr<std::vector<std::unique_ptr<ShardLog>>> OpenLogs(size_t count, const FileCalls& calls) const;
  // Deletes the log segments of older starts than `generation`.
  absl::Status RemoveLogsBefore(uint64_t generation) const;

 private:
  explicit DataDir(const v1::Config& config);

  absl::Status Lock();
  absl::Status LoadState();
  // Warns of a folder that was written with other arithmetic than this machine's.
  void CheckArithmetic() const;

  // Constant after construction.
  const v1::Config config_;
  const v1::ClusterConfig::Durability durability_;
  std::string path_;
  std::string checkpoint_dir_;

  // Constant once recovered.
  std::optional<File> lock_;
  uint64_t former_token_ = 0;
  bool served_ = false;        // A former life served from the folder.
  std::optional<bool> whole_;  // ServerData.whole
  v1::ServerState state_;
};

}  // namespace lodestone::server
