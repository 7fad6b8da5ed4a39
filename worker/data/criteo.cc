#include "worker/data/criteo.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "worker/data/number.h"
#include "worker/data/transform.h"

namespace lodestone::worker {
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
    } else {
      parsed->keys.push_back(StableHash({field.data(), field.size()}, column - 1 - kCriteoNumbers));
    }
  }
  return LineOutcome::kSample;
}

}  // namespace lodestone::worker
