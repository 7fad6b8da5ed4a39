// Delimited text whose columns a CsvLayout describes.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "worker/data/csv_layout.h"
#include "worker/data/csv_split.h"
#include "worker/data/line_parser.h"

namespace lodestone::worker {

// A category's key is StableHash(text, the column's salt); all that is missing is the empty one.
class CsvParser final : public LineParser {
 public:
  explicit CsvParser(CsvLayout layout) : layout_(std::move(layout)) {}

  LineOutcome Parse(absl::string_view line, ParsedLine* parsed, LineError* error) override;
  // The same of a line that is in its fields already.
  LineOutcome ParseFields(const std::vector<CsvField>& fields, ParsedLine* parsed, LineError* error);
  bool EndsInQuotes(absl::string_view text, bool inside) const override {
    return CsvEndsInQuotes(text, layout_.delimiter, inside);
  }

 private:
  const CsvLayout layout_;
  std::vector<CsvField> fields_;
  std::string scratch_;
  std::string bucket_;
};

}  // namespace lodestone::worker
