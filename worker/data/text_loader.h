// Data sets in files of samples: libsvm, CSV, Criteo's format as text and npy, and Parquet.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/file_list.h"
#include "worker/data/sample_limits.h"

namespace lodestone::worker {

// The files of a data set.
struct DataFiles {
  std::vector<std::string> train;
  std::vector<std::string> test;  // Empty: no test set.
  uint32_t threads = 1;           // That parse them, a file each at a time.
};

// Reads files of `format` (not IDX, GENERATED or AUTO). Every line or row is checked and every label counted; kept
// are those of the partition, and what `limits` says. Errors name file, line and column. `known` (may be null): of the
// model that is trained on, whose columns, statistics and classes are used instead of those of these files.
absl::StatusOr<LoadedData> LoadText(const v1::DataConfig& config, v1::DataConfig::Format format, const DataFiles& files,
                                    LabelKind labels, Partition partition, const LoadProgress::Callback& progress,
                                    const v1::DataDescription* known = nullptr, const SampleLimits& limits = {});

}  // namespace lodestone::worker
