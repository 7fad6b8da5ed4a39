// The files that a configuration's data lies in, and how they are read.
//
// Thread safety: pure functions but for the files that they look at.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/config.pb.h"
#include "worker/data/text_loader.h"

namespace lodestone::worker {

// Whether the data is made from a seed: data.format is generated, or there are no files and data.generated is set.
bool IsGenerated(const v1::DataConfig& config);

struct FoundData {
  v1::DataConfig::Format format = v1::DataConfig::CSV;  // Never AUTO.
  DataFiles files;
  std::vector<std::string> train_labels;  // Of IDX: the label file of each image file.
  std::vector<std::string> test_labels;
};

// The files of data that is not generated; those of data.test only `with_test`. INVALID_ARGUMENT or NOT_FOUND, with
// what to change, if there are none, if a file is in a list twice, or in data.train and in data.test (metrics would be
// of what was trained on), or if data.csv is set and the files are found to have no columns.
absl::StatusOr<FoundData> FindData(const v1::DataConfig& config, bool with_test);

}  // namespace lodestone::worker
