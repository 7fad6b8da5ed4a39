// The samples of a Parquet file: flat columns, a batch of rows at a time.
//
// A column's values are to a model what the same ones in a CSV file are: a category is hashed as text, an integer in
// decimal digits; truth values are 1 and 0; dates and times are integers in the file's unit; null and NaN are missing.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/csv_layout.h"
#include "worker/data/parquet_column.h"
#include "worker/data/parquet_metadata.h"
#include "worker/data/random_file.h"
#include "worker/data/sample_reader.h"

namespace lodestone::worker {

// A Parquet file that has been opened.
struct ParquetFile {
  std::unique_ptr<RandomFile> file;
  ParquetMetadata metadata;

  // INVALID_ARGUMENT or DATA_LOSS, naming the file, if it is no such file, or a damaged one.
  static absl::StatusOr<ParquetFile> Open(const std::string& path);
  // What its columns are called.
  std::vector<std::string> Names() const;
};

class ParquetReader final : public SampleReader {
 public:
  // Of `layout`, what its columns are for: those of `file`. UNIMPLEMENTED, naming file and column, for one whose values
  // cannot be read.
  static absl::StatusOr<std::unique_ptr<SampleReader>> Create(ParquetFile file, CsvLayout layout);

  absl::StatusOr<LineOutcome> Next(ParsedLine* parsed, LineError* error) override;
  std::string PlaceOf(const LineError& error) const override;
  uint64_t file_offset() const override;

 private:
  ParquetReader(ParquetFile file, CsvLayout layout) : file_(std::move(file)), layout_(std::move(layout)) {}

  // Reads the next rows of all columns that are used; false after the last ones.
  absl::StatusOr<bool> NextBatch();
  absl::Status Annotated(const absl::Status& status, size_t column) const;
  bool IsMissing(size_t column) const;
  // The text of the row's value; lives until the next call with the same `scratch`.
  absl::string_view TextOf(size_t column, std::string* scratch) const;
  // The row's number; false if it is none.
  bool NumberOf(size_t column, double* number) const;

  const ParquetFile file_;
  const CsvLayout layout_;
  size_t group_ = 0;                                           // The next row group.
  uint64_t group_left_ = 0;                                    // Rows of the current one that are not read yet.
  std::vector<std::unique_ptr<ParquetColumnReader>> columns_;  // By column; null: not used.
  size_t rows_ = 0;                                            // Of the batch.
  size_t row_ = 0;                                             // In the batch: the next one.
  uint64_t read_ = 0;                                          // Rows, in all.
  std::string label_, id_, scratch_, bucket_;
};

}  // namespace lodestone::worker
