// Criteo's click log: label, 13 integers and 26 hexadecimal categories, tab-separated, any of the features empty.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "proto/config.pb.h"
#include "worker/data/line_parser.h"

namespace lodestone::worker {

inline constexpr uint32_t kCriteoNumbers = 13;
inline constexpr uint32_t kCriteoCategories = 26;
inline constexpr uint32_t kCriteoColumns = 1 + kCriteoNumbers + kCriteoCategories;

// A category's key is StableHash(text, its position among the categories), the empty one's as well.
class CriteoParser final : public LineParser {
 public:
  // With `label_optional`, a line may be without its first column, as those of Criteo's test set are; an empty one is.
  explicit CriteoParser(v1::Transform transform, bool label_optional = false)
      : transform_(transform), label_optional_(label_optional) {}

  LineOutcome Parse(absl::string_view line, ParsedLine* parsed, LineError* error) override;

 private:
  const v1::Transform transform_;
  const bool label_optional_;
};

}  // namespace lodestone::worker
