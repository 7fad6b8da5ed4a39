// The samples of a Parquet file: flat columns, and lists where csv.multi names them, a batch of rows at a time.
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
#include "worker/data/file_parts.h"
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
  // `part`: its row groups.
  static absl::StatusOr<std::unique_ptr<SampleReader>> Create(ParquetFile file, CsvLayout layout, const FilePart& part);

  absl::StatusOr<LineOutcome> Next(ParsedLine* parsed, LineError* error) override;
  // Its row.
  uint64_t position() const override;
  std::string PlaceOf(uint64_t position, const LineError& error) const override;
  uint64_t file_offset() const override;
  uint64_t bytes_parsed() const override;

 private:
  ParquetReader(ParquetFile file, CsvLayout layout) : file_(std::move(file)), layout_(std::move(layout)) {}

  // Reads the next rows of all columns that are used; false after the last ones.
  absl::StatusOr<bool> NextBatch();
  absl::Status Annotated(const absl::Status& status, size_t column) const;
  bool IsMissing(size_t column) const;
  // Whether the value is one of csv.missing, or no number.
  bool StandsForMissing(size_t column, const ParquetValueRef& value) const;
  // The text of a value; lives until the next call with the same `scratch`.
  absl::string_view TextOf(size_t column, const ParquetValueRef& value, std::string* scratch) const;
  // Its number; false if it is none.
  static bool NumberOf(const ParquetValueRef& value, double* number);
  // The row's value, which is not missing.
  ParquetValueRef Value(size_t column) const { return columns_[column]->At(columns_[column]->codes()[row_]); }

  // The seconds of its time; false if it is none.
  bool TimeOf(size_t column, const ParquetValueRef& value, v1::DateTimeColumn::Format format, double* seconds) const;

  // What a model reads of a value (null: it is missing): a number, or a category's key. False, and *error says why, if
  // it is nothing that the column may hold.
  bool ReadNumber(const CsvLayout::NumericColumn& column, const ParquetValueRef* value, float* number,
                  std::string* error);
  bool ReadKey(size_t field, const ParquetValueRef* value, Key* key, double* counted, std::string* error);
  bool ReadWeight(float* weight, std::string* error);
  bool ReadLabels(std::vector<float>* labels, std::string* error);
  // Makes the translations of the dictionaries of a row group, and translates a batch by them.
  void MakeTranslations();
  void TranslateBatch();
  // Adds the row's numbers, and its categories; false, and *error says why, if one is nothing that the column may hold.
  bool AddNumbers(ParsedLine* parsed, std::string* error);
  bool AddCategories(ParsedLine* parsed, std::string* error);
  // Adds the row's categories of a column that may have several.
  void AddSeveral(size_t field, ParsedLine* parsed);
  // Values of a list that are wanted, of a column that is one.
  uint32_t ListValuesMax(size_t column) const;

  const ParquetFile file_;
  const CsvLayout layout_;
  uint64_t first_row_ = 0;                                     // Of the part, in the file.
  size_t groups_end_ = 0;                                      // Behind its row groups.
  uint64_t parsed_ = 0;                                        // Bytes of the row groups before the current one.
  size_t group_ = 0;                                           // The next row group.
  uint64_t group_left_ = 0;                                    // Rows of the current one that are not read yet.
  std::vector<std::unique_ptr<ParquetColumnReader>> columns_;  // By column; null: not used.
  size_t rows_ = 0;                                            // Of the batch.
  size_t row_ = 0;                                             // In the batch: the next one.
  uint64_t read_ = 0;                                          // Rows, in all.
  // What a dictionary's values, by their codes, and behind them a missing value come to. Empty: each is read by itself:
  // the column has no dictionary, or one with values that are errors where they are used.
  template <typename T>
  struct Translation {
    std::vector<T> values;
    bool holds = false;  // For all rows of the batch, which are translated.
  };
  bool translated_ = false;                  // The current row group.
  std::vector<Translation<float>> numbers_;  // By numeric column,
  std::vector<Translation<Key>> keys_;       // and by field.
  std::vector<float> batch_numbers_;         // [rows, numeric], as far as they are translated; likewise
  std::vector<Key> batch_keys_;              // [rows, fields].
  std::string label_, id_, scratch_, bucket_;
};

}  // namespace lodestone::worker
