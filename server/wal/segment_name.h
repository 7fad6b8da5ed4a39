// The names of a log's segments: GENERATION-LOG-SEGMENT.log, in the folder `log` of a ps.
//
// Thread safety: pure functions.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace lodestone::server {

// SegmentHeader.format of what is written and read.
inline constexpr uint32_t kSegmentFormat = 1;

// What the fields of the same names in SegmentHeader say.
struct SegmentId {
  uint64_t generation = 0;
  uint32_t log = 0;
  uint64_t segment = 0;

  friend auto operator<=>(const SegmentId&, const SegmentId&) = default;
};

std::string SegmentName(const SegmentId& id);
// Where it is in the folder `dir`.
std::string SegmentPath(const std::string& dir, const SegmentId& id);
// The segment that `name` is the name of; nullopt if it is of none.
std::optional<SegmentId> ParseSegmentName(absl::string_view name);

}  // namespace lodestone::server
