// The samples of a text file.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/file_parts.h"
#include "worker/data/line_parser.h"
#include "worker/data/line_reader.h"
#include "worker/data/sample_reader.h"

namespace lodestone::worker {

// Which lines of a file are none of its samples.
struct NoSamples {
  uint32_t skip_lines = 0;  // The first ones,
  std::string comment;      // and those that begin so; empty: none.
  bool header = false;      // And the first that is neither, nor blank.
};

// Opens a part of a file, behind the file's first `skip_lines` lines.
absl::StatusOr<LineReader> OpenLines(const FilePart& part, uint32_t skip_lines);

// The next line of `reader` that does not begin with `comment` (unless that is empty), as it stands in the file; false
// after the last one.
absl::StatusOr<bool> NextLine(const std::string& comment, LineReader* reader, absl::string_view* line);

// Lengthens `line`, the one that was read last, by the lines that its quotes join to it.
absl::Status JoinQuoted(const LineParser& parser, LineReader* reader, absl::string_view* line);

class TextReader final : public SampleReader {
 public:
  // `no_samples`: of the file.
  static absl::StatusOr<std::unique_ptr<SampleReader>> Open(const FilePart& part, std::unique_ptr<LineParser> parser,
                                                            NoSamples no_samples = {});

  absl::StatusOr<LineOutcome> Next(ParsedLine* parsed, LineError* error) override;
  // Its line's number, or of a part its first byte's.
  uint64_t position() const override { return counts_lines_ ? reader_.line_number() : reader_.line_offset(); }
  std::string PlaceOf(uint64_t position, const LineError& error) const override;
  uint64_t file_offset() const override { return is_whole_ ? reader_.file_offset() : reader_.bytes_parsed(); }
  uint64_t bytes_parsed() const override { return reader_.bytes_parsed(); }

 private:
  TextReader(LineReader reader, const FilePart& part, std::unique_ptr<LineParser> parser, NoSamples no_samples)
      : is_whole_(part.is_whole()),
        counts_lines_(part.begin == 0),
        reader_(std::move(reader)),
        parser_(std::move(parser)),
        comment_(std::move(no_samples.comment)),
        header_(no_samples.header && part.begin == 0) {}

  const bool is_whole_;
  const bool counts_lines_;  // From the file's beginning.
  LineReader reader_;
  const std::unique_ptr<LineParser> parser_;
  const std::string comment_;
  bool header_;  // Comes next.
};

}  // namespace lodestone::worker
