// The samples of a text file.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/line_parser.h"
#include "worker/data/line_reader.h"
#include "worker/data/sample_reader.h"

namespace lodestone::worker {

// The next line of `reader` with the physical lines that its quotes join to it; false after the last one.
absl::StatusOr<bool> NextLine(const LineParser& parser, LineReader* reader, absl::string_view* line);

class TextReader final : public SampleReader {
 public:
  // `skips_header`: the first line that is not blank is none.
  static absl::StatusOr<std::unique_ptr<SampleReader>> Open(const std::string& file, std::unique_ptr<LineParser> parser,
                                                            bool skips_header);

  absl::StatusOr<LineOutcome> Next(ParsedLine* parsed, LineError* error) override;
  std::string PlaceOf(const LineError& error) const override;
  uint64_t file_offset() const override { return reader_.file_offset(); }

 private:
  TextReader(LineReader reader, std::unique_ptr<LineParser> parser, bool skips_header)
      : reader_(std::move(reader)), parser_(std::move(parser)), header_(skips_header) {}

  LineReader reader_;
  const std::unique_ptr<LineParser> parser_;
  bool header_;  // Comes next.
};

}  // namespace lodestone::worker
