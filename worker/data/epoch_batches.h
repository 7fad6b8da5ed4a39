// The samples of a training run's batches: epoch after epoch, every sample once in each.
//
// An epoch of n samples is cut into ceil(n / batch_size) batches of equal size, give or take one sample, so that no
// step is taken on a small remainder. A last, fractional epoch is cut likewise.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "worker/data/dataset.h"

namespace lodestone::worker {

class EpochBatches {
 public:
  // REQUIRES: batch_size > 0, epochs >= 0.
  EpochBatches(uint64_t size, double epochs, uint64_t batch_size, uint64_t seed, bool shuffle);

  // Over all epochs.
  uint64_t total_samples() const { return total_samples_; }

  // Fills `indices` with the next batch; false after the last.
  bool Next(std::vector<uint64_t>* indices);

 private:
  const uint64_t size_;
  const uint64_t batch_size_;
  const uint64_t seed_;
  const bool shuffle_;
  const uint64_t total_samples_;

  uint64_t done_ = 0;   // Samples of finished batches, over all epochs.
  uint64_t batch_ = 0;  // Within the epoch.
  std::optional<EpochOrder> order_;
};

}  // namespace lodestone::worker
