// MNIST's IDX files: images of unsigned bytes and, in a second file, their labels. Pixels stay bytes in memory.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/file_list.h"
#include "worker/data/sample_limits.h"

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

}  // namespace lodestone::worker
