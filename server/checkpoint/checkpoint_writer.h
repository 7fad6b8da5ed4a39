// Writes the checkpoints of one ps: shard after shard while pushes go on, the manifest last, so that a checkpoint is
// there whole or not at all.
//
// Periodic ones (auto-ps3-000012) are kept so many at a time (`keep`), and share no file: each holds what changed since
// the one that comes `keep` before it, or everything. So damage to a file spoils one of those that are kept. Named ones
// hold everything and are never deleted. In between, shards that came from another ps are written by themselves
// ("arrived"), as periodic ones that do not count among those that are kept: what else the ps holds may be a thousand
// times as much.
//
// Thread-safe; one checkpoint is written at a time. Knows the shards by functions only.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "common/io/file.h"
#include "proto/checkpoint.pb.h"
#include "server/shard/shard.h"

namespace lodestone::server {

class CheckpointWriter {
 public:
  struct Options {
    std::string dir;          // Of all checkpoints; made if it is missing.
    std::string cluster;      // cluster.name.
    uint32_t server = 0;      // server.index.
    uint32_t keep = 2;        // checkpoint.keep: that many independent ones.
    uint32_t full_every = 8;  // checkpoint.full_every: of those that build on each other.
    // Whether nobody else writes as this server: files in checkpoints that it did not finish are then of a crash.
    bool remove_leftovers = true;
    // What is to stay free of the volume of `dir`, for the log that lies there too.
    uint64_t spare_bytes = 0;
    std::function<absl::StatusOr<VolumeBytes>(const std::string& path)> volume = VolumeBytesAt;
    FileCalls calls = FileCalls::System();
  };
  // Makes the folder, and removes what crashes left behind.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Open(Options options);

  // What a checkpoint is made of.
  struct Source {
    std::vector<ShardId> shards;
    // The state of a shard, of blocks and pages what changed after a version (all if null, or if those before it count
    // for nothing): the one in the periodic checkpoint that was written `keep` before. NOT_FOUND: it is not here any
    // more, and is left out. Each is let go of before the next is asked for.
    std::function<absl::StatusOr<Shard::State>(ShardId shard, const Version* after)> collect;
    // Fills what is the ps's: servers, shards, seed, lineage, generation, tables, sessions, forgotten_max, coordinator.
    // Called after the last collect, so that all tables and sessions that the states may have are there.
    std::function<void(v1::ServerManifest* manifest)> describe;
    // It is one of shards that have arrived: full, and nothing builds on it. Not for a named one.
    bool arrived = false;
  };
  struct Result {
    std::string path;  // The checkpoint's folder.
    v1::ServerManifest manifest;
    uint64_t bytes = 0;  // Written for it.
    double seconds = 0;
    // Periodic ones that are beyond `keep`, the newest first, and stay as some of their shards are in no newer one in
    // the folder: they have left this ps, and may be nowhere else.
    std::vector<std::string> stay;
  };
  // Writes a checkpoint called `name`, or a periodic one if that is empty; OK: the disk has it. INVALID_ARGUMENT for a
  // name that none can have, ALREADY_EXISTS, UNAVAILABLE while another one is written, CANCELLED by Stop,
  // RESOURCE_EXHAUSTED where it would take what is to stay free, or what went wrong with which file. After an error
  // nothing is left of it, and the checkpoints before are as they were.
  absl::StatusOr<Result> Write(const std::string& name, const Source& source);

  // These periodic checkpoints are damaged: nothing builds on them from now on, and they do not count among those that
  // are kept, so that they go with the next one, unless they hold what no other does. False if all were known as such.
  bool NoteDamaged(const std::vector<std::string>& names);

  // Removes this ps's part of a checkpoint that is not periodic, if it is there. INVALID_ARGUMENT for a name that none
  // can have; the errors of files.
  absl::Status Remove(const std::string& name);

  // Ends the Write under way soon, and all later ones. For a ps that shuts down.
  void Stop() { stop_.store(true, std::memory_order_relaxed); }

 private:
  using ShardEntry = v1::ServerManifest::ShardEntry;
  class Attempt;  // checkpoint_writer.cc

  explicit CheckpointWriter(Options options) : options_(std::move(options)) {}

  std::string FolderOf(const std::string& name) const { return options_.dir + "/" + name; }
  // Finds the next number, and removes what is there of checkpoints without a manifest.
  absl::Status Prepare();
  absl::StatusOr<Result> WriteLocked(const std::string& name, const Source& source)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);
  absl::StatusOr<std::string> ChooseName(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);
  using Contents = absl::flat_hash_map<ShardId, ShardEntry>;  // Whose folders are all named.
  // A periodic one that the next one of its row can build on.
  struct Periodic {
    Contents contents;
    uint32_t since_full = 0;  // How many since the full one that it builds on.
  };

  // What the next periodic one builds on; null if it must be full.
  const Periodic* Base() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);
  void NotePeriodic(const v1::ServerManifest& manifest, uint32_t since_full) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);
  // Removes this ps's part of a checkpoint, and its folder if that is all. `note`: also that of which shards have gone
  // back to it (gone_back.h), which counts as long as other parts are there.
  absl::Status RemovePart(const std::string& name, bool note) const;
  // Removes periodic ones that are beyond options_.keep, that no other needs and whose shards are all in newer ones;
  // `damaged_too`: one that was written of all takes the place of those that are damaged. `stay` as Result.
  absl::Status RemoveOld(bool damaged_too, std::vector<std::string>* stay) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);

  // Constant after construction.
  const Options options_;

  // Synchronises itself.
  std::atomic<bool> stop_{false};

  // Held while a checkpoint is written.
  Mutex writing_;
  uint64_t next_number_ ABSL_GUARDED_BY(writing_) = 1;
  std::deque<Periodic> newest_ ABSL_GUARDED_BY(writing_);    // At most options_.keep, oldest first.
  std::set<std::string> damaged_ ABSL_GUARDED_BY(writing_);  // See NoteDamaged.
};

}  // namespace lodestone::server
