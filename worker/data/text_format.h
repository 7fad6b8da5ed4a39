// The format of a data set's files, text, Parquet or npy: which columns are features, and the reader of each file.
//
// Not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/config.pb.h"
#include "proto/model.pb.h"
#include "worker/data/csv_layout.h"
#include "worker/data/dataset.h"
#include "worker/data/file_parts.h"
#include "worker/data/sample_reader.h"

namespace lodestone::worker {

class TextFormat {
 public:
  struct Options {
    bool labels_optional = false;  // A line may have no label, which is then empty.
    // Of CSV and Parquet files, by name: the column that names the samples; and one that groups them in the files that
    // have it. Empty: none does.
    std::string id_column;
    std::string group_column;
    std::string weight_column;  // The same of the column of weights.
  };
  // `config` and `known` must outlive it. Of a model that was trained before, `known` (else null) describes the data:
  // its columns are sought by name in each file, in its order and with its salts, and must have its transforms.
  TextFormat(const v1::DataConfig& config, v1::DataConfig::Format format, const v1::DataDescription* known,
             Options options);
  TextFormat(const v1::DataConfig& config, v1::DataConfig::Format format, const v1::DataDescription* known)
      : TextFormat(config, format, known, Options()) {}

  // Looks at the first file, for the schema. INVALID_ARGUMENT, naming file and column, if it is not what `known` says.
  absl::Status Start(const std::string& file);
  // The features, and what is done to the numeric ones. After Start.
  const Schema& schema() const { return schema_; }
  const std::vector<v1::Transform>& transforms() const { return transforms_; }
  // Whether samples have groups. After Start.
  bool grouped() const { return sparse_grouped_ || (first_layout_.has_value() && first_layout_->group.has_value()); }
  // Whether samples have weights, and of which column, as errors say it. After Start.
  bool weighted() const { return first_layout_.has_value() && first_layout_->weight.has_value(); }
  // The names of several labels; empty: samples have one. After Start.
  std::vector<std::string> LabelNames() const;
  std::string WeightColumn() const { return first_layout_->names[*first_layout_->weight]; }
  // Columns of csv.bucket whose bounds are not known, since they are those of the training files: ParsedLine::counted
  // has their numbers until they are set. After Start.
  size_t unknown_bounds() const;
  void SetBounds(std::vector<std::vector<double>> bounds);
  // Sets the fields about format and columns, but for their statistics. After Start.
  void Describe(v1::DataDescription* description) const;

  // The reader of a part of one of the files; null if the file is empty. After Start.
  absl::StatusOr<std::unique_ptr<SampleReader>> Open(const FilePart& part);

 private:
  // The layout of a file of columns; nothing if it is empty.
  absl::StatusOr<std::optional<CsvLayout>> Layout(const std::string& file) const;
  absl::StatusOr<std::optional<CsvLayout>> RawLayout(const std::string& file) const;
  void SetBounds(CsvLayout* layout) const;
  absl::Status CheckLikeFirst(const std::string& file, const CsvLayout& layout) const;
  // Whether the first sample of a file of key:value features says of which
  // group it is.
  absl::Status FindSparseGroup(const std::string& file);
  bool is_sparse() const { return format_ == v1::DataConfig::LIBSVM || format_ == v1::DataConfig::LIBFFM; }
  bool has_columns() const { return format_ == v1::DataConfig::CSV || format_ == v1::DataConfig::PARQUET; }
  bool is_criteo() const { return format_ == v1::DataConfig::CRITEO || format_ == v1::DataConfig::CRITEO_NPY; }
  absl::Status CheckCriteo(const std::string& file) const;

  const v1::DataConfig& config_;
  const v1::DataConfig::Format format_;
  const v1::DataDescription* const known_;
  const Options options_;
  v1::Transform transform_;
  Schema schema_;
  std::vector<v1::Transform> transforms_;
  std::optional<CsvLayout> first_layout_;
  bool sparse_grouped_ = false;
  std::vector<std::vector<double>> bounds_;
  // Of the file that a part was opened of last.
  std::string opened_file_;
  std::optional<CsvLayout> opened_layout_;
};

}  // namespace lodestone::worker
