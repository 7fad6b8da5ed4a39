// MNIST's IDX files: images of unsigned bytes and, in a second file, their labels. Pixels stay bytes in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "proto/model.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/file_list.h"
#include "worker/data/sample_limits.h"
#include "worker/data/sample_reader.h"

namespace lodestone::worker {

// Image files with the label file of each.
struct IdxFiles {
  std::vector<std::string> images;
  std::vector<std::string> labels;
};

// Reads the images of the partition, those of `test` unless that is empty, and what `limits` says. Errors name the file
// and, where it helps, the offset or index. `known` as LoadText's.
absl::StatusOr<LoadedData> LoadIdx(const v1::DataConfig& config, const IdxFiles& train, const IdxFiles& test,
                                   LabelKind labels, Partition partition, const LoadProgress::Callback& progress,
                                   const v1::DataDescription* known = nullptr, const SampleLimits& limits = {});

// Pixels to numbers: (table[byte] - mean) * factor, the latter by pixel if the transform standardizes.
struct PixelTransform {
  uint32_t pixels = 0;  // Of an image.
  std::vector<float> table;
  std::vector<float> means;
  std::vector<float> factors;

  // Writes `pixels` numbers.
  void Apply(const uint8_t* image, float* to) const;
};

// What a described model makes of pixels. `config` is the data's (ConfigOf of model_description.h). INVALID_ARGUMENT if
// the model was not trained on images.
absl::StatusOr<std::shared_ptr<const PixelTransform>> KnownPixels(const v1::DataConfig& config,
                                                                  const v1::DataDescription& known);

// The pixels of a file's images as they are, from 0 to 255.
absl::StatusOr<std::shared_ptr<const PixelTransform>> RawPixels(const std::string& images);

// The images of one file, as samples; `labels`: its label file, empty: they have none.
absl::StatusOr<std::unique_ptr<SampleReader>> OpenImages(std::shared_ptr<const PixelTransform> transform,
                                                         const std::string& images, const std::string& labels);

}  // namespace lodestone::worker
