#include "worker/data/criteo.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "worker/data/number.h"
#include "worker/data/transform.h"

namespace lodestone::worker {
namespace {

// Whether all of `text` is a hexadecimal number of 32 bits; none is 0.
bool ParseHexadecimal(absl::string_view text, uint32_t* number) {
  *number = 0;
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, *number, 16);
  return text.empty() || (result.ec == std::errc() && result.ptr == end);
}

}  // namespace

LineOutcome CriteoParser::Parse(absl::string_view line, ParsedLine* parsed, LineError* error) {
  if (line.empty()) return LineOutcome::kBlank;
  parsed->numeric.clear();
  parsed->keys.clear();
  const char* p = line.data();
  const char* const end = p + line.size();
  uint32_t column = 0;
  if (label_optional_ && std::count(line.begin(), line.end(), '\t') == kCriteoColumns - 2) {
    parsed->label = {};
    column = 1;
  }
  for (; column < kCriteoColumns; ++column) {
    const void* tab = std::memchr(p, '\t', end - p);
    const bool last = column + 1 == kCriteoColumns;
    const size_t at = p - line.data() + 1;
    if ((tab == nullptr) != last) {
      error->column = last ? static_cast<const char*>(tab) - line.data() + 2 : at;
      error->message = last ? absl::StrCat("more than the ", kCriteoColumns, " columns of Criteo's format")
                            : absl::StrCat(column + 1, " columns instead of the ", kCriteoColumns,
                                           " of Criteo's format, which are separated by tabs");
      return LineOutcome::kMalformed;
    }
    const char* const field_end = last ? end : static_cast<const char*>(tab);
    const absl::string_view field(p, field_end - p);
    p = last ? end : field_end + 1;
    if (column == 0) {
      parsed->label = field;
      parsed->label_column = at;
    } else if (column <= kCriteoNumbers) {
      double number = 0;
      if (!field.empty() && !ParseNumber(field, &number)) {
        error->column = at;
        error->message = absl::StrCat(Quoted(field), " in integer column ", column, " is not a number");
        return LineOutcome::kMalformed;
      }
      parsed->numeric.push_back(field.empty() ? MissingNumber(transform_) : TransformNumber(transform_, number));
    } else if (const uint32_t category = column - 1 - kCriteoNumbers; categories_ == Categories::kTexts) {
      parsed->keys.push_back(StableHash({field.data(), field.size()}, category));
    } else {
      uint32_t number = 0;
      if (!ParseHexadecimal(field, &number)) {
        error->column = at;
        error->message = absl::StrCat(Quoted(field), " in category ", category + 1,
                                      " is no hexadecimal number of 32 bits, as those of npy files are");
        return LineOutcome::kMalformed;
      }
      parsed->keys.push_back(keys_.Of(number, category));
    }
  }
  return LineOutcome::kSample;
}

}  // namespace lodestone::worker
