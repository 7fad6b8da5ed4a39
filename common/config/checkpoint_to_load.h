// The value of checkpoint.load: NAME, or NAME#TIME to go back to the checkpoint for the TIME-th time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace lodestone {

struct CheckpointToLoad {
  std::string name;
  uint32_t time = 1;
};

// nullopt if it is neither: names are as CheckCheckpointName (server/checkpoint/manifest.h) wants them, times are from
// 2 to 1,000,000.
std::optional<CheckpointToLoad> ParseCheckpointToLoad(absl::string_view load);

}  // namespace lodestone
