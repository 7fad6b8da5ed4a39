#include "worker/data/text_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::worker {

absl::StatusOr<LineReader> OpenLines(const FilePart& part, uint32_t skip_lines) {
  LODESTONE_ASSIGN_OR_RETURN(LineReader reader, part.is_whole()
                                                    ? LineReader::Open(part.file)
                                                    : LineReader::OpenRange(part.file, part.begin, part.end));
  absl::string_view line;
  for (uint32_t i = 0; i < skip_lines && part.begin == 0; ++i) {
    LODESTONE_ASSIGN_OR_RETURN(const bool found, reader.Next(&line));
    if (found || part.is_whole()) continue;
    return absl::InvalidArgumentError(absl::StrCat(part.file, ": csv.skip_lines goes beyond the first ", part.end,
                                                   " bytes, a part of the file by data.read: share; ",
                                                   "set data.read: all"));
  }
  return reader;
}

absl::StatusOr<bool> NextLine(const std::string& comment, LineReader* reader, absl::string_view* line) {
  do {
    LODESTONE_ASSIGN_OR_RETURN(const bool found, reader->Next(line));
    if (!found) return false;
  } while (!comment.empty() && absl::StartsWith(*line, comment));
  return true;
}

absl::Status JoinQuoted(const LineParser& parser, LineReader* reader, absl::string_view* line) {
  bool inside = parser.EndsInQuotes(*line, false);
  while (inside) {
    const size_t known = line->size();
    LODESTONE_ASSIGN_OR_RETURN(const bool more, reader->Extend(line));
    if (!more) break;
    inside = parser.EndsInQuotes(line->substr(std::min(known, line->size())), true);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SampleReader>> TextReader::Open(const FilePart& part, std::unique_ptr<LineParser> parser,
                                                               NoSamples no_samples) {
  LODESTONE_ASSIGN_OR_RETURN(LineReader reader, OpenLines(part, no_samples.skip_lines));
  return std::unique_ptr<SampleReader>(
      new TextReader(std::move(reader), part, std::move(parser), std::move(no_samples)));
}

absl::StatusOr<LineOutcome> TextReader::Next(ParsedLine* parsed, LineError* error) {
  while (true) {
    absl::string_view line;
    LODESTONE_ASSIGN_OR_RETURN(const bool found, NextLine(comment_, &reader_, &line));
    if (!found) return LineOutcome::kBlank;
    LODESTONE_RETURN_IF_ERROR(JoinQuoted(*parser_, &reader_, &line));
    if (!is_whole_ && reader_.lines_joined() > 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          PlaceOf(position(), {1, 1, ""}),
          ": a quoted field holds the end of a line, where data.read: share may cut the file; ", "set data.read: all"));
    }
    if (header_) {
      header_ = line.find_first_not_of(' ') == absl::string_view::npos;
      continue;
    }
    const LineOutcome outcome = parser_->Parse(line, parsed, error);
    if (outcome == LineOutcome::kMalformed) error->lines = reader_.lines_joined();
    if (outcome != LineOutcome::kBlank) return outcome;
  }
}

std::string TextReader::PlaceOf(uint64_t position, const LineError& error) const {
  if (!counts_lines_) return absl::StrCat(reader_.path(), ": byte ", position + error.column - 1);
  return absl::StrCat(reader_.path(), ":", position, ":", error.column);
}

}  // namespace lodestone::worker
