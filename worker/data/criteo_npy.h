// Criteo's click log as NumPy arrays: for each day numbers, categories and labels, in a file each.
//
// A day is what its lines in Criteo's format are whose numbers stand there in decimal digits and whose categories have
// 8 hexadecimal digits, those of the array's lowest 32 bits, or are empty where the array has 0: TorchRec's and DLRM's
// preprocessing writes missing categories so. A number that is NaN is missing.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/config.pb.h"
#include "worker/data/criteo.h"
#include "worker/data/file_parts.h"
#include "worker/data/npy_array.h"
#include "worker/data/sample_reader.h"

namespace lodestone::worker {

// Those of `files` that are named as the numbers of a day are, DAY_dense.npy; DAY_sparse.npy and DAY_labels.npy are
// left out beside it, so that a glob may match them too. INVALID_ARGUMENT, naming `option`, if one is named otherwise.
absl::StatusOr<std::vector<std::string>> DaysOf(const std::vector<std::string>& files, absl::string_view option);

// The arrays of a day.
struct CriteoDay {
  NpyArray numbers;
  NpyArray categories;
  std::optional<NpyArray> labels;  // None: they are not wanted.

  uint64_t row_bytes() const {
    return numbers.row_bytes() + categories.row_bytes() + (labels.has_value() ? labels->row_bytes() : 0);
  }

  // Of the file of numbers, one of DaysOf, and those beside it.
  static absl::StatusOr<CriteoDay> Open(const std::string& numbers, bool with_labels);
  // Of three files of any names; `labels` is empty where they are not wanted. Errors are NpyArray's; NOT_FOUND, naming
  // the file of numbers too, if another one is not there; INVALID_ARGUMENT if the files have not as many rows as each
  // other.
  static absl::StatusOr<CriteoDay> OpenFiles(const std::string& numbers, const std::string& categories,
                                             const std::string& labels);
};

class CriteoNpyReader final : public SampleReader {
 public:
  // `part`: its rows.
  CriteoNpyReader(CriteoDay day, v1::Transform transform, const FilePart& part);

  absl::StatusOr<LineOutcome> Next(ParsedLine* parsed, LineError* error) override;
  // "FILE: row R, column C (byte B)", from 0; the columns of errors are those of Criteo's lines, from 1.
  // Its row.
  uint64_t position() const override { return row_ == begin_ ? begin_ : row_ - 1; }
  std::string PlaceOf(uint64_t position, const LineError& error) const override;
  // Of the file of numbers.
  uint64_t file_offset() const override { return (row_ - begin_) * day_.numbers.row_bytes(); }
  uint64_t bytes_parsed() const override { return (row_ - begin_) * day_.row_bytes(); }

 private:
  absl::Status ReadRows();
  // Read the parts of row `at` of those that are in memory; false, and *error says why, if it is malformed.
  bool ReadNumbers(size_t at, ParsedLine* parsed, LineError* error) const;
  bool ReadCategories(size_t at, ParsedLine* parsed, LineError* error) const;
  void ReadLabel(size_t at, ParsedLine* parsed);

  const CriteoDay day_;
  const v1::Transform transform_;
  const CriteoKeys keys_;
  const uint64_t begin_;
  const uint64_t end_;
  uint64_t row_;             // The next one.
  uint64_t read_begin_ = 0;  // Of the rows that are in memory,
  uint64_t read_end_ = 0;    // and behind the last of them.
  std::string numbers_, categories_, labels_;
  std::array<char, 24> label_;  // The label's digits.
};

}  // namespace lodestone::worker
