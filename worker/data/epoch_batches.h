// The samples of a training run's batches: epoch after epoch, every sample once in each. Batches are numbered over all
// epochs, from 0.
//
// An epoch of n samples is cut into ceil(n / batch_size) batches of equal size, give or take one sample, so that no
// step is taken on a small remainder. A last, fractional epoch is cut likewise.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "proto/config.pb.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {

class EpochBatches {
 public:
  // `window` as EpochOrder's. REQUIRES: batch_size > 0, epochs >= 0.
  EpochBatches(uint64_t size, double epochs, uint64_t batch_size, uint64_t seed, bool shuffle, uint64_t window = 0);

  // What a configuration says of the window: the same for all workers that have it.
  static uint64_t WindowOf(const v1::Config& config);

  // Over all epochs.
  uint64_t total_samples() const { return total_samples_; }

  // Batches of a whole epoch, and of all of them.
  uint64_t epoch_batches() const { return BatchesOf(size_); }
  uint64_t batches() const;

  // From now on, tells `data`, whose samples these are and which must outlive it, what will be read soon: a window
  // ahead.
  void ReadAheadIn(const Dataset* data) { data_ = data; }

  // Fills `indices` with the batch of this number. REQUIRES: number < batches().
  void Read(uint64_t number, std::vector<uint64_t>* indices);
  // The same with the next batch; false after the last.
  bool Next(std::vector<uint64_t>* indices);

 private:
  uint64_t BatchesOf(uint64_t samples) const { return (samples + batch_size_ - 1) / batch_size_; }
  EpochOrder OrderOf(uint64_t epoch) const { return EpochOrder(size_, seed_, epoch, shuffle_, window_); }
  // Samples up to this position of the epoch of order_ are about to be read.
  void ReadAhead(uint64_t position);

  const uint64_t size_;
  const uint64_t batch_size_;
  const uint64_t seed_;
  const bool shuffle_;
  const uint64_t window_;
  const uint64_t total_samples_;

  uint64_t next_ = 0;   // Batch.
  uint64_t epoch_ = 0;  // Of order_.
  std::optional<EpochOrder> order_;

  const Dataset* data_ = nullptr;
  // Runs, counted over all epochs, that `data_` was told of.
  uint64_t told_begin_ = 0;
  uint64_t told_end_ = 0;
};

}  // namespace lodestone::worker
