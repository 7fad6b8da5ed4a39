#include "worker/data/text_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::worker {

absl::StatusOr<bool> NextLine(const LineParser& parser, LineReader* reader, absl::string_view* line) {
  LODESTONE_ASSIGN_OR_RETURN(const bool found, reader->Next(line));
  if (!found) return false;
  bool inside = parser.EndsInQuotes(*line, false);
  while (inside) {
    const size_t known = line->size();
    LODESTONE_ASSIGN_OR_RETURN(const bool more, reader->Extend(line));
    if (!more) break;
    inside = parser.EndsInQuotes(line->substr(std::min(known, line->size())), true);
  }
  return true;
}

absl::StatusOr<std::unique_ptr<SampleReader>> TextReader::Open(const std::string& file,
                                                               std::unique_ptr<LineParser> parser, bool skips_header) {
  LODESTONE_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(file));
  return std::unique_ptr<SampleReader>(new TextReader(std::move(reader), std::move(parser), skips_header));
}

absl::StatusOr<LineOutcome> TextReader::Next(ParsedLine* parsed, LineError* error) {
  while (true) {
    absl::string_view line;
    LODESTONE_ASSIGN_OR_RETURN(const bool found, NextLine(*parser_, &reader_, &line));
    if (!found) return LineOutcome::kBlank;
    if (header_) {
      header_ = line.find_first_not_of(' ') == absl::string_view::npos;
      continue;
    }
    const LineOutcome outcome = parser_->Parse(line, parsed, error);
    if (outcome != LineOutcome::kBlank) return outcome;
  }
}

std::string TextReader::PlaceOf(const LineError& error) const {
  return absl::StrCat(reader_.path(), ":", reader_.line_number(), ":", error.column);
}

}  // namespace lodestone::worker
