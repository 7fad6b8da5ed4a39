// Criteo's click log: label, 13 integers and 26 hexadecimal categories, tab-separated, any of the features empty.
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "common/base/hash.h"
#include "common/base/types.h"
#include "proto/config.pb.h"
#include "worker/data/line_parser.h"

namespace lodestone::worker {

inline constexpr uint32_t kCriteoNumbers = 13;
inline constexpr uint32_t kCriteoCategories = 26;
inline constexpr uint32_t kCriteoColumns = 1 + kCriteoNumbers + kCriteoCategories;

// The keys of categories that are numbers, as npy files have them: those of their 8 hexadecimal digits, in lower case,
// in Criteo's lines, and for 0 those of empty ones.
class CriteoKeys {
 public:
  CriteoKeys() {
    for (uint32_t i = 0; i < kCriteoCategories; ++i) fields_[i] = {StableHashStart(i, 8), StableHash("", i)};
  }

  Key Of(uint32_t category, uint32_t field) const {
    const Field& of = fields_[field];
    const Key key = StableHashOfWord(of.start, HexadecimalDigits(category));
    return category == 0 ? of.empty : key;
  }

 private:
  struct Field {
    uint64_t start;  // Of the hash of 8 bytes.
    Key empty;
  };

  // The digits as text, the first one lowest.
  static uint64_t HexadecimalDigits(uint32_t number) {
    constexpr uint64_t kOfEach = 0x0101010101010101;
    uint64_t digits = __builtin_bswap32(number);
    digits = (digits | digits << 16) & 0x0000ffff0000ffff;
    digits = (digits | digits << 8) & 0x00ff00ff00ff00ff;            // A byte of the number in every second one.
    digits = (digits >> 4 | digits << 8) & (0x0f * kOfEach);         // A digit in each.
    const uint64_t letters = (digits + 6 * kOfEach) >> 4 & kOfEach;  // 1 where it is above 9.
    return digits + '0' * kOfEach + letters * ('a' - '0' - 10);
  }

  std::array<Field, kCriteoCategories> fields_;
};

// A category's key is StableHash(text, its position among the categories), the empty one's as well.
class CriteoParser final : public LineParser {
 public:
  // What categories are: texts, any ones; or numbers, hexadecimal ones of 32 bits (CriteoKeys), 1f being 0000001f.
  enum class Categories { kTexts, kNumbers };

  // With `label_optional`, a line may be without its first column, as those of Criteo's test set are; an empty one is.
  explicit CriteoParser(v1::Transform transform, bool label_optional = false,
                        Categories categories = Categories::kTexts)
      : transform_(transform), label_optional_(label_optional), categories_(categories) {}

  LineOutcome Parse(absl::string_view line, ParsedLine* parsed, LineError* error) override;

 private:
  const v1::Transform transform_;
  const bool label_optional_;
  const Categories categories_;
  const CriteoKeys keys_;
};

}  // namespace lodestone::worker
