// Parsers of YAML numbers and bools, and quoting of texts in errors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lodestone {

// A whole number: magnitude with a sign, so that it covers both int64 and uint64. 0 is never negative.
struct Integer {
  bool negative = false;
  uint64_t magnitude = 0;
};

// The units that may stand behind a number: none; of bytes, 64KiB, 1.5 GiB (or Ki, Mi, Gi, Ti; binary) and 10MB (kB,
// MB, GB, TB; decimal); of time, 250ms, 10s, 5min or 5m, 2h and 1d, the number being milliseconds.
enum class Units { kNone, kBytes, kMilliseconds };

// Reads 42, -7, 1_000_000, 0xff, or what is whole though written otherwise: 1e6, 2.50e2, 3.0, with a unit of `units`.
// InvalidArgument: not a number, or not whole; OutOfRange: beyond +-(2^64 - 1).
absl::StatusOr<Integer> ParseInteger(std::string_view text, Units units);

// Reads a decimal number: 1, -0.5, .5, 1e-3, 1_000.5. InvalidArgument: not a number, or inf or nan; OutOfRange: beyond
// the finite doubles.
absl::StatusOr<double> ParseNumber(std::string_view text);

// Reads true, yes, on, false, no, off in any case; nothing for other texts.
std::optional<bool> ParseBool(std::string_view text);

// The shortest decimal text that reads back to the same value. REQUIRES: value is finite.
std::string ShortestText(double value);
std::string ShortestText(float value);

// `text` for an error: between backquotes, cut to a readable length, without control characters.
std::string Quote(std::string_view text);

}  // namespace lodestone
