// What a user means by a path: one checkpoint, or a folder of them.
//
// Thread safety: pure functions and plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lodestone {

struct CheckpointFolder {
  std::string dir;   // Of the checkpoints.
  std::string name;  // Of the one that is meant; empty: all.
};

// A folder with files of checkpoints in it is a checkpoint; any other is a folder of them. NOT_FOUND if `path` is no
// folder.
absl::StatusOr<CheckpointFolder> FindCheckpointFolder(const std::string& path);

// {3, 5, 6, 7} as "3, 5-7". REQUIRES: ascending.
std::string NumbersText(const std::vector<uint32_t>& numbers);

}  // namespace lodestone
