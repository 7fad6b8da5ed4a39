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
  // Of a column of lists, each row's first `list_values_max` values are kept.
  ParquetColumnReader(const RandomFile* file, const ParquetColumn* column, const ParquetChunk* chunk,
                      uint32_t list_values_max = 0);

  // Reads the next `rows` values, or lists of values, into codes(). DATA_LOSS if there are not so many, or they are
  // damaged; UNIMPLEMENTED for what no reader of this program understands, with what to write instead. Neither names
  // the file.
  absl::Status Read(size_t rows);

  // Bytes of pages and their headers that have been read.
  uint64_t bytes_parsed() const { return at_; }
  // Where each of the values that were read last lies, good until the next Read: kMissing: nowhere; below the size of
  // dictionary(): there; else, less that size, in what the pages hold themselves.
  static constexpr uint32_t kMissing = UINT32_MAX;
  const std::vector<uint32_t>& codes() const { return codes_; }
  // Of a column of lists: where each row's values begin among codes(), and behind the last row's. Missing ones are left
  // out.
  const std::vector<size_t>& row_begins() const { return row_begins_; }
  // The column's dictionary in this row group, from the first Read on; empty: it has none.
  const ParquetValues& dictionary() const { return dictionary_; }
  // Whether all of the values are missing or the dictionary's.
  bool all_of_dictionary() const { return values_.size() == 0; }
  // A value by its code, which is not kMissing.
  ParquetValueRef At(uint32_t code) const {
    const size_t of_dictionary = dictionary_.size();
    return code < of_dictionary ? ParquetValueRef{&dictionary_, code} : ParquetValueRef{&values_, code - of_dictionary};
  }

 private:
  absl::Status NextPage();
  absl::Status TakeDictionary(const ParquetPage& page, absl::string_view packed);
  absl::Status TakeData(const ParquetPage& page, absl::string_view packed);
  absl::Status StartValues(int32_t encoding, absl::string_view bytes);
  // Reads `rows` of the page's rows, which has so many.
  absl::Status ReadOfPage(size_t rows);
  // Reads the next `count` values that are there: their codes.
  absl::Status ReadPresent(size_t count);
  absl::Status ReadLists(size_t rows);
  // Reads levels of the page until the row behind `rows` rows begins; true if it does.
  absl::StatusOr<bool> ReadListsOfPage(size_t rows);

  const RandomFile* const file_;
  const ParquetColumn& column_;
  const ParquetChunk& chunk_;
  const uint32_t list_values_max_;
  uint64_t at_ = 0;  // Of the next page, in the chunk.

  std::string dictionary_bytes_;
  ParquetValues dictionary_;
  std::unique_ptr<std::string> page_bytes_ = std::make_unique<std::string>();
  uint64_t page_left_ = 0;  // Rows of the page, or levels of lists, that are not read yet.
  ParquetRuns repetitions_;
  ParquetRuns definitions_;
  // Of a column of lists: levels that were read ahead, from level_ on.
  std::vector<uint32_t> repetition_levels_;
  std::vector<uint32_t> definition_levels_;
  size_t level_ = 0;
  bool indexed_ = false;  // The page has indices into the dictionary.
  bool truths_in_runs_ = false;
  ParquetRuns indices_;
  PlainReader plain_;

  std::vector<std::unique_ptr<std::string>> kept_;  // Pages that texts of values_ lie in, but for the last.
  bool has_data_ = false;                           // Of the row group, that was read before.
  std::vector<uint32_t> levels_;
  std::vector<uint32_t> present_;  // Codes.
  ParquetValues values_;           // Of no dictionary.
  std::vector<uint32_t> codes_;
  std::vector<size_t> row_begins_;
};

}  // namespace lodestone::worker
