// Numbers as data files hold them: "7", "-1", "+1", ".5", "3e-4". Several times as fast as strtod on short ones.
//
// Thread safety: pure functions.
#pragma once

#include <cmath>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace lodestone::worker {

// ParseNumberPrefix for what its fast path leaves: exponents, more than 15 digits, text that is no number.
const char* ParseLongNumberPrefix(const char* begin, const char* end, double* value);

// Parses the decimal number that starts at `begin` and returns where it ends, or null if none starts there. The value
// is correctly rounded; it may be infinite or not a number, if the text says so or is out of range.
inline const char* ParseNumberPrefix(const char* begin, const char* end, double* value) {
  static constexpr double kPowersOfTen[] = {1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                            1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
  const char* p = begin;
  if (p < end && (*p == '-' || *p == '+')) ++p;
  uint64_t mantissa = 0;
  const char* const digits = p;
  for (; p < end && static_cast<unsigned char>(*p - '0') < 10; ++p) mantissa = mantissa * 10 + (*p - '0');
  auto digit_count = p - digits;
  decltype(digit_count) fraction = 0;
  if (p < end && *p == '.') {
    const char* const point = p++;
    for (; p < end && static_cast<unsigned char>(*p - '0') < 10; ++p) mantissa = mantissa * 10 + (*p - '0');
    fraction = p - point - 1;
    digit_count += fraction;
  }
  // Mantissa and power of ten are exact here, so their quotient is correctly rounded (Clinger 1990).
  if (digit_count == 0 || digit_count > 15 || (p < end && (*p | 0x20) == 'e')) {
    return ParseLongNumberPrefix(begin, end, value);
  }
  const double magnitude = static_cast<double>(mantissa) / kPowersOfTen[fraction];
  *value = *begin == '-' ? -magnitude : magnitude;
  return p;
}

// Whether all of `text` is a number that a float can hold.
inline bool ParseNumber(absl::string_view text, double* value) {
  const char* const end = text.data() + text.size();
  return ParseNumberPrefix(text.data(), end, value) == end && !text.empty() &&
         std::isfinite(static_cast<float>(*value));
}

}  // namespace lodestone::worker
