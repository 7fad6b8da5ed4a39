// Interpretation of a path as one checkpoint or as a folder of several.
//
// Thread safety: pure functions and plain values.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace lodestone::psctl {

struct CheckpointFolder {
  std::string dir;   // Of the checkpoints.
  std::string name;  // Of the one that is meant; empty: all.
};

// A folder with files of checkpoints in it is a checkpoint; any other is a folder of them, or a data folder
// (server.data_dir), which has one. NOT_FOUND if `path` is no folder.
absl::StatusOr<CheckpointFolder> FindCheckpointFolder(const std::string& path);

}  // namespace lodestone::psctl
