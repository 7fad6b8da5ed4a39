// Samples that come one by one, and from no file, as a described model reads them: of lines in the format that the
// model was trained on, of the fields of named columns, or of images. The numbers and keys are those that a file would
// give.
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
#include "worker/data/csv.h"
#include "worker/data/csv_split.h"
#include "worker/data/dataset.h"
#include "worker/data/idx.h"
#include "worker/data/line_parser.h"
#include "worker/data/transform.h"

namespace lodestone::worker {

class SampleParser {
 public:
  // In all of these `config` is the data's (ConfigOf of model_description.h). INVALID_ARGUMENT, naming the column, if
  // what comes lacks what the model reads; UNIMPLEMENTED if the model takes no such samples.
  //
  // Lines of csv, libsvm or criteo text, labels optional; of a model of criteo_npy data criteo's lines, with the
  // numbers as the files have them. `first`: of csv the line that a file would begin with: the columns' names, if the
  // model was trained on files with a header, and else any sample.
  static absl::StatusOr<std::unique_ptr<SampleParser>> OfLines(const v1::DataConfig& config,
                                                               std::shared_ptr<const v1::ModelDescription> model,
                                                               absl::string_view first);
  // Fields of columns with these names, of a model of csv or Parquet data.
  static absl::StatusOr<std::unique_ptr<SampleParser>> OfColumns(const v1::DataConfig& config,
                                                                 std::shared_ptr<const v1::ModelDescription> model,
                                                                 std::vector<std::string> names);
  // Images, a byte a pixel.
  static absl::StatusOr<std::unique_ptr<SampleParser>> OfImages(const v1::DataConfig& config,
                                                                std::shared_ptr<const v1::ModelDescription> model);

  // Each adds a sample to the batch, with label 0. INVALID_ARGUMENT says what is wrong, and in which column; then the
  // batch is as it was. REQUIRES: this was made for such samples; a field for each column.
  absl::Status AddLine(absl::string_view line, Batch* batch);
  absl::Status AddFields(const std::vector<CsvField>& fields, Batch* batch);
  absl::Status AddImage(absl::string_view pixels, Batch* batch);

 private:
  explicit SampleParser(std::shared_ptr<const v1::ModelDescription> model) : model_(std::move(model)) {}

  static absl::StatusOr<std::unique_ptr<SampleParser>> OfLayout(std::shared_ptr<const v1::ModelDescription> model,
                                                                CsvLayout layout);
  void Append(Batch* batch);

  const std::shared_ptr<const v1::ModelDescription> model_;
  std::unique_ptr<CsvParser> columns_;            // Of csv lines and fields; else null.
  std::unique_ptr<LineParser> lines_;             // Of libsvm, criteo and criteo_npy; else null.
  std::shared_ptr<const PixelTransform> pixels_;  // Of images; else null.
  std::optional<Standardizer> standardizer_;
  ParsedLine parsed_;
};

}  // namespace lodestone::worker
