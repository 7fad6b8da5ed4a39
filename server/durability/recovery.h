// The recovery of a store from checkpoints and logs: each shard starts from its newest checkpoint, then what its log
// holds beyond that is applied.
//
// Used by a ps when it starts, and offline (psctl replay). Not thread-safe; the store's methods that it calls run on
// several threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "common/io/file.h"
#include "proto/log.pb.h"
#include "server/wal/update_mark.h"

namespace lodestone::server {

class Store;

struct RecoveryOptions {
  v1::SegmentHeader cluster;  // What the files must agree with: cluster, shards, seed.
  std::string log_dir;        // Empty: there is no log.
  // Logs of servers that the cluster had and has no more, by index: they are only looked at.
  std::vector<std::pair<uint32_t, std::string>> former_log_dirs;
  std::string checkpoint_dir;    // The folder of all checkpoints; empty: there are none.
  std::string checkpoint;        // Start from this one; empty: from the newest of each shard.
  bool has_followers = false;    // The log holds updates of shards that this ps followed, too: they are left out.
  bool servers_changed = false;  // Since the log was written: what no checkpoint has of other shards is an error.
  bool use_log = true;           // False: from the checkpoint alone.
  bool cut_damaged_log = false;  // See ServerConfig.
  // The logs of this generation and of those before have been sealed (LogReader::Seal). 0: none have.
  uint64_t sealed_generation = 0;
  // The boot of the machine in which the logs of the generation `begun` were begun, where it may have gone down without
  // what was in them: it counts where no header is left that says so. Empty: it is not known.
  std::string unsynced_boot;
  uint64_t begun = 0;
  // Seals the logs, so that what goes on from them goes on from what is on the disk. With it, the calls to do it by;
  // null: they stay as they are.
  const FileCalls* seal = nullptr;
  Version until = std::numeric_limits<Version>::max();  // Each shard is brought to this version, or as far as it came.
  const std::atomic<bool>* stop = nullptr;              // Set to make it return CANCELLED soon; may be null.
  std::function<void(const std::string&)> progress;  // What is being done, now and then, from any thread; may be empty.
};

struct RecoveryReport {
  // The greatest of the logs found, and of the periodic checkpoints of this server that are used, which may be of
  // starts in a folder that was lost; 0: there are none.
  uint64_t generation = 0;
  uint64_t base_generation = 0;  // Of this server, the oldest start whose periodic one is used; 0: unknown.
  uint64_t shards_from_checkpoints = 0;
  std::vector<Version> base_versions;  // By shard: what its checkpoint had; 0: it has none.
  std::vector<MarkedVersion> newest;   // By shard: the update that made its version, if the log has that.
  std::vector<uint64_t> lineages;      // By shard: the greatest in what was found of it; 0: nothing was.
  bool newest_damaged = false;         // What is brought back of a shard is of a lesser one: the rest was damaged.
  uint64_t records = 0;                // Of logs, applied.
  uint64_t record_bytes = 0;           // Their payloads'.
  bool cut_damage = false;             // The log was damaged, and what followed was left out (cut_damaged_log).
  std::vector<std::string> notes;      // What a user should know: tails that were cut, files that were passed over.
};

// Brings back the adopted shards of `store`, which have no tables yet. DATA_LOSS, naming file and offset or the shard,
// if they cannot be what they were; NOT_FOUND if there is no such checkpoint, or it lacks a shard; FAILED_PRECONDITION,
// naming the shard, if it has come beyond options.until and what is left does not reach back to there.
absl::StatusOr<RecoveryReport> Recover(const RecoveryOptions& options, Store* store);

}  // namespace lodestone::server
