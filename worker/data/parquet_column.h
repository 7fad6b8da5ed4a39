// The values of one column in one row group of a Parquet file, read a page at a time.
//
// Not thread-safe. `file`, `column` and `chunk` must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/parquet_metadata.h"
#include "worker/data/parquet_values.h"
#include "worker/data/random_file.h"

namespace lodestone::worker {

class ParquetColumnReader {
 public:
  ParquetColumnReader(const RandomFile* file, const ParquetColumn* column, const ParquetChunk* chunk);

  // Reads the next `rows` values into values() and missing(). DATA_LOSS if there are not so many, or they are damaged;
  // UNIMPLEMENTED for what no reader of this program understands, with what to write instead. Neither names the file.
  absl::Status Read(size_t rows);

  // What was read last, good until the next Read.
  const ParquetValues& values() const { return values_; }
  // Whether each of them is missing.
  const std::vector<bool>& missing() const { return missing_; }

 private:
  absl::Status NextPage();
  absl::Status TakeDictionary(const ParquetPage& page, absl::string_view packed);
  absl::Status TakeData(const ParquetPage& page, absl::string_view packed);
  absl::Status StartValues(int32_t encoding, absl::string_view bytes);
  // Reads `rows` of the page's rows, which has so many.
  absl::Status ReadOfPage(size_t rows);
  absl::Status ReadPresent(size_t count);

  const RandomFile* const file_;
  const ParquetColumn& column_;
  const ParquetChunk& chunk_;
  uint64_t at_ = 0;  // Of the next page, in the chunk.

  std::string dictionary_bytes_;
  ParquetValues dictionary_;
  std::unique_ptr<std::string> page_bytes_ = std::make_unique<std::string>();
  uint64_t page_left_ = 0;  // Rows of the page that are not read yet.
  ParquetRuns definitions_;
  bool indexed_ = false;  // The page has indices into the dictionary.
  bool truths_in_runs_ = false;
  ParquetRuns indices_;
  PlainReader plain_;

  std::vector<std::unique_ptr<std::string>> kept_;  // Pages that texts of values_ lie in, but for the last.
  std::vector<uint32_t> scratch_;
  ParquetValues present_;
  ParquetValues values_;
  std::vector<bool> missing_;
};

}  // namespace lodestone::worker
