// How many samples a worker keeps beside its partition of the training data, and the error of too many.
//
// Thread safety: a plain value.
#pragma once

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "proto/config.pb.h"

namespace lodestone::worker {

struct SampleLimits {
  bool with_test = true;                                 // Whether there is to be a test set,
  uint64_t test = std::numeric_limits<uint64_t>::max();  // of at most so many samples (at least 1).
  uint64_t train_sample = 0;                             // Training samples of all partitions; 0: none.
};

// The samples take more than data.memory_max_bytes, and data.spill_dir is not set.
absl::Status TooMuchData(const v1::DataConfig& config);

}  // namespace lodestone::worker
