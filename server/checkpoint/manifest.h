// Checkpoints on disk: how their files are called, and their manifests. In the folder of a cluster's checkpoints,
//
//   NAME/ps-3.manifest       what ps 3 wrote for the checkpoint NAME; there once all of it is on the disk
//   NAME/ps-3.shard-00017    a shard's file (shard_file.h)
//   NAME/ps-3.gone-back      which shards of ps 3 have gone back to it (gone_back.h)
//   auto-ps3-000012/...      a periodic checkpoint of ps 3, the 12th
//
// Thread safety: pure functions; files of one server are written by one process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/types.h"
#include "proto/checkpoint.pb.h"

namespace lodestone::server {

inline constexpr uint32_t kCheckpointFormat = 1;

// INVALID_ARGUMENT if a checkpoint cannot be called that (CheckpointRequest.name). Names of periodic ones are refused.
absl::Status CheckCheckpointName(absl::string_view name);

inline constexpr absl::string_view kGoneBackSuffix = ".gone-back";

// "ps-3.manifest", "ps-3.gone-back", "ps-3.shard-00017".
std::string ManifestName(uint32_t server);
std::string GoneBackName(uint32_t server);
std::string ShardFileName(uint32_t server, ShardId shard);
// Whether `server` writes files of that name.
bool IsFileOf(uint32_t server, absl::string_view file);
// "auto-ps3-000012", and the number in such a name.
std::string PeriodicName(uint32_t server, uint64_t number);
std::optional<uint64_t> NumberOfPeriodic(uint32_t server, absl::string_view name);
// Whether it is the name of a periodic checkpoint of any server.
bool IsPeriodic(absl::string_view name);

// Whether there is such a file; true if that cannot be told.
bool FileExists(const std::string& path);

// A manifest, checked in itself. DATA_LOSS, naming the file, if it is damaged or makes no sense.
absl::StatusOr<v1::ServerManifest> ReadManifest(const std::string& path);
// Puts a manifest in place. OK: the disk has it.
absl::Status WriteManifest(const std::string& path, const v1::ServerManifest& manifest);

// The lineage of a shard's state in a manifest (ShardEntry.lineage).
inline uint64_t LineageOf(const v1::ServerManifest& manifest, const v1::ServerManifest::ShardEntry& entry) {
  return entry.lineage() != 0 ? entry.lineage() : manifest.lineage();
}

// A manifest in a folder of checkpoints.
struct FoundManifest {
  std::string name;     // The checkpoint's: that of its folder.
  uint32_t server = 0;  // As its file is called.
  std::string path;
  absl::StatusOr<v1::ServerManifest> manifest;
};
// All manifests of the checkpoints in `dir`, by name and server; of `name` only, if it is not empty. None if there is
// no such folder.
absl::StatusOr<std::vector<FoundManifest>> FindManifests(const std::string& dir, const std::string& name = "");

}  // namespace lodestone::server
