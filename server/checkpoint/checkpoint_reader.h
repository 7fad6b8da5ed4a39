// Finds the states of shards among checkpoints, written by a cluster of any number of
// servers: one of another number reads them, too.
//
// Thread safety: immutable; shards may be restored by several threads at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/checkpoint.pb.h"
#include "proto/table.pb.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/shard_file.h"
#include "server/shard/shard.h"

namespace lodestone::server {

// The files of one shard in a manifest of a checkpoint in `dir`.
ShardFiles FilesOf(const std::string& dir, const FoundManifest& found, const v1::ServerManifest::ShardEntry& entry);

class CheckpointReader {
 public:
  // Reads all manifests in a folder of checkpoints, of which there may be none; one that cannot be read is left out and
  // told by problems(). With `name`, reads the manifests of that checkpoint, and the first that cannot be read is an
  // error (DATA_LOSS); NOT_FOUND if it has none.
  static absl::StatusOr<CheckpointReader> Open(const std::string& dir, const std::string& name = "");

  // What was read, by name and server: all of them OK.
  const std::vector<FoundManifest>& manifests() const { return manifests_; }
  // What could not be read: a line for each manifest.
  const std::vector<std::string>& problems() const { return problems_; }

  // FAILED_PRECONDITION, naming the manifest, if one is of another cluster, or of one with other shards or another
  // seed.
  absl::Status CheckCluster(const std::string& cluster, uint32_t shards, uint64_t seed) const;

  // One state of a shard.
  struct State {
    const FoundManifest* found = nullptr;
    ShardFiles files;

    const v1::ServerManifest& manifest() const { return *found->manifest; }
  };
  // All states of a shard, the best first: that of the greatest lineage, in it of the greatest term, and in that of the
  // greatest version.
  std::vector<State> StatesOf(ShardId shard) const;

  static constexpr Version kAnyVersion = std::numeric_limits<Version>::max();
  // The tables that the best states of these shards, up to `version_max`, may hold, by name: those of all manifests of
  // the same lineages; a later lineage's specification counts. One whose settings
  // have changed comes as it was made, then as it is. Where those of one lineage were made with other settings, the one
  // counts that is beside the best states. FAILED_PRECONDITION if they are not the same but for that; UNIMPLEMENTED,
  // naming the field, if one holds what this program does not know.
  absl::StatusOr<std::vector<v1::TableSpec>> Tables(std::span<const ShardId> shards,
                                                    Version version_max = kAnyVersion) const;

  // Brings a shard to its best state that is whole, not beyond `version_max` and `usable` (null: all are), and returns
  // which that is; nullopt if there is none, which for a named checkpoint is an error. What was damaged is added to
  // `damage`, naming file and offset; DATA_LOSS if that is all there is, and if the checkpoint was named. REQUIRES: the
  // shard has the tables and has applied nothing.
  absl::StatusOr<std::optional<State>> Restore(Shard* shard, std::vector<std::string>* damage,
                                               Version version_max = kAnyVersion,
                                               const std::function<bool(const State&)>& usable = nullptr) const;

 private:
  CheckpointReader(std::string dir, std::string name) : dir_(std::move(dir)), name_(std::move(name)) {}

  std::string dir_;
  std::string name_;  // Empty: all.
  std::vector<FoundManifest> manifests_;
  std::vector<std::string> problems_;
};

}  // namespace lodestone::server
