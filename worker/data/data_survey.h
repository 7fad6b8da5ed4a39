// What the first rows of a data set look like, before anything is trained on them (psctl check --data).
//
// Thread safety: a pure function but for the files, and plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "worker/data/data_files.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {

// A feature's column in the rows that were read.
struct SurveyedColumn {
  std::string name;
  bool is_number = false;
  std::string rule;       // What is done to it: a transform, a bucket, a pooling; empty: nothing.
  uint64_t missing = 0;   // Rows without a value.
  uint64_t distinct = 0;  // Values, at most as many as are counted,
  bool more = false;      // and there are more.
  double least = 0;       // Of numbers, before the transform.
  double greatest = 0;
  bool is_label = false;     // It has the label's number in each row.
  bool tells_label = false;  // Equal values have equal labels, though there are several labels and values come again.
};

struct DataSurvey {
  FoundData found;
  bool format_detected = false;
  uint64_t bytes = 0;          // Of the training files, as they lie on the disk.
  uint64_t rows = 0;           // That were read: samples,
  uint64_t malformed = 0;      // and lines that are none, which data.bad_lines_max allows.
  bool whole = false;          // There are no more.
  uint64_t samples_about = 0;  // Of all training files, by their bytes.
  uint64_t features = 0;       // Keys of these rows, and distinct ones of them.
  uint64_t keys = 0;
  Schema schema;  // Labels and their counts are those of these rows.
  bool numeric_labels = false;
  // Of samples with weights: their sum, the least and the greatest, and how many are 0.
  double weight_sum = 0;
  double weight_least = 0;
  double weight_greatest = 0;
  uint64_t weightless = 0;
  std::vector<SurveyedColumn> columns;  // Empty for libsvm, libffm and images.
};

// Reads up to `rows_max` training samples, and of the first test file a few. Errors are LoadData's, of what was read.
// REQUIRES: the data is not generated.
absl::StatusOr<DataSurvey> SurveyData(const v1::DataConfig& config, LabelKind labels, uint64_t rows_max);

}  // namespace lodestone::worker
