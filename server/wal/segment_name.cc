#include "server/wal/segment_name.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace lodestone::server {

std::string SegmentName(const SegmentId& id) {
  return absl::StrCat(absl::Dec(id.generation, absl::kZeroPad6), "-", absl::Dec(id.log, absl::kZeroPad3), "-",
                      absl::Dec(id.segment, absl::kZeroPad6), ".log");
}

std::string SegmentPath(const std::string& dir, const SegmentId& id) { return absl::StrCat(dir, "/", SegmentName(id)); }

std::optional<SegmentId> ParseSegmentName(absl::string_view name) {
  absl::string_view numbers = name;
  if (!absl::ConsumeSuffix(&numbers, ".log")) return std::nullopt;
  const std::vector<absl::string_view> parts = absl::StrSplit(numbers, '-');
  SegmentId id;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &id.generation) || !absl::SimpleAtoi(parts[1], &id.log) ||
      !absl::SimpleAtoi(parts[2], &id.segment)) {
    return std::nullopt;
  }
  // Two names for one segment would be two segments.
  if (SegmentName(id) != name) return std::nullopt;
  return id;
}

}  // namespace lodestone::server
