// The fields of a line of delimited text: RFC 4180 quotes, a delimiter of any length.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/data/line_parser.h"

namespace lodestone::worker {

// Columns of a file, at most: more are a mistake, and would take much memory.
inline constexpr size_t kColumnsMax = 1 << 18;

// One field, without its quotes and, if it has none, without blanks around it.
struct CsvField {
  absl::string_view text;
  size_t column = 1;  // Byte within the line that it begins at, from 1.
};

// Splits `line` into `fields`; views point into `line` or, where doubled quotes had to be undone, into `scratch`. A
// delimiter of one blank takes any number of them, also before the first and after the last field. False, and *error
// says why, if text follows a closing quote, a quote is not closed or there are more than kColumnsMax fields. REQUIRES:
// the delimiter is not empty.
bool SplitCsv(absl::string_view line, absl::string_view delimiter, std::vector<CsvField>* fields, std::string* scratch,
              LineError* error);

// Whether `text`, which begins at the start of a field or, with `inside`, within quotes, ends within quotes.
bool CsvEndsInQuotes(absl::string_view text, absl::string_view delimiter, bool inside);

// The delimiter that `line` seems to have: of , tab ; | and :: the most frequent outside of quotes, a blank if there is
// none of these, a comma if there is no blank either.
std::string DetectCsvDelimiter(absl::string_view line);

}  // namespace lodestone::worker
