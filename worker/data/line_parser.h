// A parsed line of a data file, the same for all formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/hash.h"
#include "common/base/types.h"

namespace lodestone::worker {

// A sample as its line has it.
struct ParsedLine {
  absl::string_view label;     // As text; lives until the parser's next line.
  size_t label_column = 1;     // Byte within the line that the label begins at, from 1.
  std::vector<float> labels;   // Of several labels (csv.labels): 0 or 1, NaN where one is missing; else empty.
  absl::string_view id;        // What names the sample, where a column does; lives as long.
  std::vector<float> numeric;  // Transformed as far as the line alone allows; NaN: missing, to be standardized.
  std::vector<Key> keys;
  std::vector<float> values;  // Beside keys; empty if all are 1.
  // Of each field, how many keys it has, where some may have several (csv.multi); empty: one each.
  std::vector<uint32_t> field_keys;
  std::vector<double> counted;  // Of the columns whose bounds are to be found; NaN: missing.
  uint64_t group = 0;           // The hash of its group's text, where a column names groups (GroupOf).
  float weight = 1;             // What the sample counts: finite, and not negative.
};

// The label of samples that have none, because all are what was chosen (csv.label: "").
inline constexpr absl::string_view kLabelOfAll = "1";

// Of the text of csv.group's column, empty if it is missing.
inline uint64_t GroupOf(absl::string_view text) { return StableHash({text.data(), text.size()}); }

// What is wrong with a line, and where.
struct LineError {
  size_t column = 0;   // Byte within the line, from 1.
  uint64_t lines = 1;  // Of the file, that are lost with it: more than one, where a quote was not closed.
  std::string message;
};

// The beginning of a field, in quotes, for an error.
inline std::string Quoted(absl::string_view field) {
  constexpr size_t kShownBytesMax = 40;
  return absl::StrCat("\"", absl::CHexEscape(field.substr(0, kShownBytesMax)), "\"");
}

enum class LineOutcome {
  kSample,
  kBlank,      // Nothing on it.
  kMalformed,  // *error says why.
};

// One format's parser. Not thread-safe: it keeps scratch memory from line to line.
class LineParser {
 public:
  virtual ~LineParser() = default;

  // Parses `line`, any bytes, into `parsed`, whose vectors are reused.
  virtual LineOutcome Parse(absl::string_view line, ParsedLine* parsed, LineError* error) = 0;

  // Whether `text` ends within quotes, so that its line goes on after the newline; `inside`: it begins within them.
  virtual bool EndsInQuotes(absl::string_view text, bool inside) const {
    (void)text;
    (void)inside;
    return false;
  }
};

}  // namespace lodestone::worker
