// The samples of one file, one after another, whatever its format.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/line_parser.h"

namespace lodestone::worker {

class SampleReader {
 public:
  virtual ~SampleReader() = default;

  // Reads the next sample into `parsed`: kSample, kMalformed (*error says what is wrong, and reading goes on), or
  // kBlank at the end of the file. Errors, which name the file, end the reading.
  virtual absl::StatusOr<LineOutcome> Next(ParsedLine* parsed, LineError* error) = 0;

  // The place in the file of the sample that was read last, for PlaceOf.
  virtual uint64_t position() const = 0;
  // A place in words: "FILE:LINE:COLUMN" of a text. May be called while another thread reads.
  virtual std::string PlaceOf(uint64_t position, const LineError& error) const = 0;
  // Bytes of the file that have been read.
  virtual uint64_t file_offset() const = 0;
  // Bytes that samples were made of so far: of text unpacked, of Parquet and npy as they lie in the file.
  virtual uint64_t bytes_parsed() const = 0;
};

}  // namespace lodestone::worker
