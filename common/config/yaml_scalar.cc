#include "common/config/yaml_scalar.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lodestone {
namespace {

constexpr size_t kQuotedBytesMax = 80;

struct Unit {
  std::string_view name;
  uint64_t factor;
};
// Longer names first where one ends in another.
constexpr std::array<Unit, 13> kByteUnits = {{{"KiB", 1ull << 10},
                                              {"MiB", 1ull << 20},
                                              {"GiB", 1ull << 30},
                                              {"TiB", 1ull << 40},
                                              {"Ki", 1ull << 10},
                                              {"Mi", 1ull << 20},
                                              {"Gi", 1ull << 30},
                                              {"Ti", 1ull << 40},
                                              {"kB", 1000ull},
                                              {"KB", 1000ull},
                                              {"MB", 1000'000ull},
                                              {"GB", 1000'000'000ull},
                                              {"TB", 1000'000'000'000ull}}};
constexpr std::array<Unit, 6> kTimeUnits = {
    {{"ms", 1ull}, {"s", 1000ull}, {"min", 60'000ull}, {"m", 60'000ull}, {"h", 3600'000ull}, {"d", 86400'000ull}}};

std::span<const Unit> UnitsOf(Units units) {
  if (units == Units::kBytes) return kByteUnits;
  if (units == Units::kMilliseconds) return kTimeUnits;
  return {};
}

// A decimal text taken apart: +-digits * 10^exponent.
struct Decimal {
  bool negative = false;
  std::string digits;  // Without leading and trailing zeros; empty for 0.
  int64_t exponent = 0;
};

// Takes a sign off the front.
bool TakeSign(std::string_view* text) {
  const bool negative = text->starts_with('-');
  if (negative || text->starts_with('+')) text->remove_prefix(1);
  return negative;
}

// Without the underscores that stand between two digits; nothing if one stands elsewhere.
std::optional<std::string> WithoutUnderscores(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() || !absl::ascii_isxdigit(text[i - 1]) ||
               !absl::ascii_isxdigit(text[i + 1])) {
      return std::nullopt;
    }
  }
  return out;
}

// Reads digits [. digits] [e exponent]; nothing if `text` is not of that form.
std::optional<Decimal> ParseDecimal(std::string_view text) {
  Decimal decimal;
  decimal.negative = TakeSign(&text);
  const size_t exponent_at = text.find_first_of("eE");
  if (exponent_at != std::string_view::npos) {
    int exponent = 0;
    std::string_view exponent_text = text.substr(exponent_at + 1);
    const bool negative = TakeSign(&exponent_text);
    if (exponent_text.empty() || exponent_text.size() > 9 ||
        !std::all_of(exponent_text.begin(), exponent_text.end(), absl::ascii_isdigit) ||
        !absl::SimpleAtoi(std::string(exponent_text), &exponent)) {
      return std::nullopt;
    }
    decimal.exponent = negative ? -exponent : exponent;
    text = text.substr(0, exponent_at);
  }
  bool any_digit = false;
  bool after_point = false;
  for (const char c : text) {
    if (c == '.' && !after_point) {
      after_point = true;
    } else if (absl::ascii_isdigit(c)) {
      any_digit = true;
      if (after_point) --decimal.exponent;
      if (c != '0' || !decimal.digits.empty()) decimal.digits += c;
    } else {
      return std::nullopt;
    }
  }
  if (!any_digit) return std::nullopt;
  while (!decimal.digits.empty() && decimal.digits.back() == '0') {
    decimal.digits.pop_back();
    ++decimal.exponent;
  }
  return decimal;
}

absl::Status NotAnInteger(std::string_view text, Units units) {
  std::string_view expected = "a whole number";
  if (units == Units::kBytes) expected = "a number of bytes such as 4096 or 64MiB";
  if (units == Units::kMilliseconds) expected = "a time such as 250 (milliseconds), 10s, 5min or 2h";
  return absl::InvalidArgumentError(absl::StrCat("expected ", std::string(expected), ", got ", Quote(text)));
}

absl::Status TooLarge(std::string_view text) {
  return absl::OutOfRangeError(absl::StrCat(Quote(text), " is out of range"));
}

// decimal * factor, exactly.
absl::StatusOr<Integer> ToInteger(const Decimal& decimal, uint64_t factor, std::string_view text, Units units) {
  if (decimal.digits.empty()) return Integer{};
  if (decimal.exponent > 20 || decimal.digits.size() > 39) {
    return decimal.exponent < 0 ? NotAnInteger(text, units) : TooLarge(text);
  }
  unsigned __int128 value = factor;
  const auto limit = static_cast<unsigned __int128>(std::numeric_limits<uint64_t>::max());
  // Digits times the factor, then the power of ten; a product that would not fit 128 bits is out of range anyway.
  unsigned __int128 digits = 0;
  for (const char c : decimal.digits) {
    if (digits > limit) return decimal.exponent < 0 ? NotAnInteger(text, units) : TooLarge(text);
    digits = digits * 10 + static_cast<unsigned>(c - '0');
  }
  if (digits > limit) return decimal.exponent < 0 ? NotAnInteger(text, units) : TooLarge(text);
  value *= digits;
  for (int64_t i = 0; i < decimal.exponent; ++i) {
    if (value > limit) return TooLarge(text);
    value *= 10;
  }
  for (int64_t i = 0; i > decimal.exponent; --i) {
    if (value % 10 != 0) return NotAnInteger(text, units);
    value /= 10;
  }
  if (value > limit) return TooLarge(text);
  return Integer{decimal.negative, static_cast<uint64_t>(value)};
}

absl::StatusOr<Integer> ParseHex(std::string_view digits, bool negative, std::string_view text) {
  Integer integer{negative, 0};
  if (digits.empty() || !std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit)) {
    return NotAnInteger(text, Units::kNone);
  }
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), integer.magnitude, 16);
  if (error != std::errc()) return TooLarge(text);
  if (integer.magnitude == 0) integer.negative = false;
  return integer;
}

template <typename Float>
std::string ShortestTextOf(Float value) {
  std::array<char, 64> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return std::string(buffer.data(), end);
}

}  // namespace

absl::StatusOr<Integer> ParseInteger(std::string_view text, Units units) {
  std::string_view number = text;
  uint64_t factor = 1;
  for (const Unit& unit : UnitsOf(units)) {
    if (!number.ends_with(unit.name) || number.find("0x") != std::string_view::npos) continue;
    factor = unit.factor;
    number.remove_suffix(unit.name.size());
    while (number.ends_with(' ')) number.remove_suffix(1);
    break;
  }
  const std::optional<std::string> plain = WithoutUnderscores(number);
  if (!plain) return NotAnInteger(text, units);
  std::string_view digits = *plain;
  const bool negative = TakeSign(&digits);
  if (factor == 1 && (digits.starts_with("0x") || digits.starts_with("0X"))) {
    return ParseHex(digits.substr(2), negative, text);
  }
  const std::optional<Decimal> decimal = ParseDecimal(*plain);
  if (!decimal) return NotAnInteger(text, units);
  return ToInteger(*decimal, factor, text, units);
}

absl::StatusOr<double> ParseNumber(std::string_view text) {
  std::string_view unsigned_text = text;
  TakeSign(&unsigned_text);
  if (unsigned_text.starts_with('.')) unsigned_text.remove_prefix(1);
  const std::string lower = absl::AsciiStrToLower(std::string(unsigned_text));
  if (lower == "inf" || lower == "infinity" || lower == "nan") {
    return absl::InvalidArgumentError(absl::StrCat("expected a finite number, got ", Quote(text)));
  }
  const std::optional<std::string> plain = WithoutUnderscores(text);
  double value = 0;
  if (!plain || !ParseDecimal(*plain) || !absl::SimpleAtod(*plain, &value)) {
    return absl::InvalidArgumentError(absl::StrCat("expected a number, got ", Quote(text)));
  }
  if (!std::isfinite(value)) return TooLarge(text);
  return value;
}

std::optional<bool> ParseBool(std::string_view text) {
  const std::string lower = absl::AsciiStrToLower(std::string(text));
  if (lower == "true" || lower == "yes" || lower == "on") return true;
  if (lower == "false" || lower == "no" || lower == "off") return false;
  return std::nullopt;
}

std::string ShortestText(double value) { return ShortestTextOf(value); }
std::string ShortestText(float value) { return ShortestTextOf(value); }

std::string Quote(std::string_view text) {
  std::string out = "`";
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (i >= kQuotedBytesMax && (c & 0xc0) != 0x80) {  // Never within a character.
      out += "...";
      break;
    }
    out += c < 0x20 || c == 0x7f ? ' ' : text[i];
  }
  return out + "`";
}

}  // namespace lodestone
