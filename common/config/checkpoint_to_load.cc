#include "common/config/checkpoint_to_load.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "common/base/limits.h"

namespace lodestone {
namespace {

constexpr uint32_t kTimesMax = 1'000'000;

}  // namespace

std::optional<CheckpointToLoad> ParseCheckpointToLoad(absl::string_view load) {
  const size_t mark = std::min(load.find('#'), load.size());
  CheckpointToLoad parsed{std::string(load.substr(0, mark))};
  const bool is_name = std::all_of(parsed.name.begin(), parsed.name.end(),
                                   [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == '-'; });
  if (parsed.name.empty() || parsed.name.size() > limits::kCheckpointNameBytesMax ||
      !absl::ascii_isalnum(parsed.name.front()) || !is_name)
    return std::nullopt;
  if (mark == load.size()) return parsed;
  const bool is_time = absl::SimpleAtoi(load.substr(mark + 1), &parsed.time);
  return is_time && parsed.time >= 2 && parsed.time <= kTimesMax ? std::optional(parsed) : std::nullopt;
}

}  // namespace lodestone
