// The samples of files, one batch after another, as a described model reads them: for predictions, of files of any
// size.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "proto/model.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/idx.h"
#include "worker/data/label_index.h"
#include "worker/data/sample_reader.h"
#include "worker/data/text_format.h"
#include "worker/data/transform.h"

namespace lodestone::worker {

class SampleStream {
 public:
  // A batch that has so many keys, or numbers, gets no more samples: images may be large.
  static constexpr size_t kKeysEnough = 1 << 20;
  static constexpr size_t kNumbersEnough = 1 << 24;

  struct Options {
    // Whether samples must have their labels. Otherwise lines may be without, and labels are 0.
    bool labels = false;
    // Of CSV and Parquet files: the column whose text names each sample. Empty: its number, from 0 over all files.
    std::string id_column;
  };
  // Of `files` of the format that the model was trained on. `config` is the data's (ConfigOf of model_description.h).
  // Labels of images are in the files that their names say (LabelFileOf); of criteo_npy, files are named as DaysOf has
  // it. INVALID_ARGUMENT, naming file and column, if they lack what the model reads; UNIMPLEMENTED if the model was
  // trained on generated data.
  static absl::StatusOr<std::unique_ptr<SampleStream>> Open(v1::DataConfig config,
                                                            std::shared_ptr<const v1::ModelDescription> model,
                                                            std::vector<std::string> files, Options options);

  // The next samples, at most `max`, and what names each: in the files' order. No samples at the end. Errors name file,
  // line and column; the stream is of no use then. The batch's memory is used again.
  absl::Status Next(size_t max, Batch* batch, std::vector<std::string>* ids);

 private:
  SampleStream(v1::DataConfig config, std::shared_ptr<const v1::ModelDescription> model, std::vector<std::string> files,
               Options options, LabelIndex labels);

  // Opens the next file; false after the last one.
  absl::StatusOr<bool> OpenNext();
  absl::StatusOr<std::unique_ptr<SampleReader>> OpenImageFile(const std::string& images) const;
  // Reads a sample; false at the end of the file.
  absl::StatusOr<bool> ReadSample(Batch* batch, std::vector<std::string>* ids);
  // Gives the batch what several_ has.
  void PutSeveralLabels(Batch* batch) const;
  absl::Status ErrorAt(const LineError& error) const;

  const v1::DataConfig config_;
  const std::shared_ptr<const v1::ModelDescription> model_;
  const std::vector<std::string> files_;
  const Options options_;
  const LabelIndex labels_;
  TextFormat format_;
  std::optional<Standardizer> standardizer_;
  std::shared_ptr<const PixelTransform> pixels_;  // Null unless they are images.

  size_t file_ = 0;  // The next one.
  std::unique_ptr<SampleReader> reader_;
  ParsedLine parsed_;
  std::vector<float> several_;  // Of several labels: those of the batch, sample by sample.
  uint64_t samples_ = 0;
};

}  // namespace lodestone::worker
