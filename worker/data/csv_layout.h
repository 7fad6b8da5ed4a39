// The roles of a CSV file's columns.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/config.pb.h"
#include "worker/data/bucket.h"
#include "worker/data/date_time.h"
#include "worker/data/multi.h"

namespace lodestone::worker {

// A file's columns, found from the configuration and the file's first two lines.
struct CsvLayout {
  struct NumericColumn {
    size_t index = 0;
    v1::Transform transform = v1::NONE;  // Never DEFAULT.
    bool indicates_missing = false;      // It is 1 where the column's number is missing, else 0.
    TimeRule time;                       // If it is set, the column has times, of which this is the number.
  };

  std::string delimiter;
  bool has_header = false;
  bool named = false;               // plain_names are names: of its header, or of that of the data's first file.
  bool numeric_by_default = false;  // No feature column was named, so all are numeric.
  std::vector<std::string> names;   // Of all columns, as errors say them: column "age", or column 3.
  std::vector<std::string>
      plain_names;                  // Of all columns: "age", or 3; those that two columns bear have the index added.
  std::optional<size_t> label = 0;  // Nothing: there is none.
  std::vector<size_t> labels;       // Of several (csv.labels), where `label` is nothing; empty: there is one, or none.
  std::vector<NumericColumn> numeric;
  // Those of texts, then those of csv.bucket by name, or index, then those of csv.multi and csv.datetime likewise.
  std::vector<size_t> categorical;
  std::vector<uint64_t> salts;  // Beside categorical: StableHash of the column's plain name (and ":hour" or the like),
  std::vector<std::string> vocabulary_of;  // or that of the column which has this plain name, if it is not empty;
  std::vector<BucketRule> buckets;         // how the category comes of the field,
  std::vector<MultiRule> multi;            // and whether it has several; empty: none has.
  std::vector<std::string> missing;        // What stands for a missing value, beside the empty field.

  bool label_optional = false;   // A line may have none.
  std::optional<size_t> id;      // The column that names the samples.
  std::optional<size_t> group;   // The column that groups them.
  std::optional<size_t> weight;  // The column of their weights.

  // Whether each label is 1, because there is no column of them (csv.label: "").
  bool unlabelled = false;

  // What a number of the column, or its time, reads as, `x` being NaN where it is missing.
  static float NumberOf(const NumericColumn& column, double x);
  // Sets a sample's weight; false, and *error says why, if the number is none. NaN: it is missing.
  bool SetWeight(double number, float* weight, std::string* error) const;
  // Sets one of several labels, that of labels[k]; false, and *error says why, if the number is none. NaN: it is
  // missing.
  bool SetLabel(size_t k, double number, float* label, std::string* error) const;
  std::string NoLabel(size_t k, absl::string_view text) const;
  bool IsMissing(absl::string_view text) const {
    if (text.empty()) return true;
    for (const std::string& m : missing) {
      if (text == m) return true;
    }
    return false;
  }
};

// The delimiter that csv.delimiter names, or, where it is empty, that `first` seems to have, the first line with
// anything on it.
std::string CsvDelimiter(const v1::CsvConfig& config, absl::string_view first);

// Finds the layout of `file` (its name, for errors), whose first lines with anything on them are `first` and `second`
// (absent if there is but one). `transform` is what numeric columns have unless csv.transform says otherwise.
// With `label_optional`, a file with a header need not have the label's column, nor a line its label. `names`: of the
// columns of a file that has no header and as many of them, or null.
// INVALID_ARGUMENT, naming file, option and column, if a column is not there or is two things at once.
absl::StatusOr<CsvLayout> FindCsvLayout(const v1::CsvConfig& config, v1::Transform transform, absl::string_view file,
                                        absl::string_view first, std::optional<absl::string_view> second,
                                        bool label_optional = false, const std::vector<std::string>* names = nullptr);

// The same of a file whose format says what its columns are called: `names`.
absl::StatusOr<CsvLayout> FindColumnLayout(const v1::CsvConfig& config, v1::Transform transform, absl::string_view file,
                                           std::vector<std::string> names, bool label_optional = false);

}  // namespace lodestone::worker
