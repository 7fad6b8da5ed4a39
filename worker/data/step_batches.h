// The batches of synchronous steps: those of a run (EpochBatches), so many to a step, over the ends of epochs. Batch b
// is of step b / step_batches of the run, and has number b % step_batches in it.
//
// Where the run's batches are no multiple of that, the last step is made of the samples that are left, cut into
// step_batches batches of equal size, give or take one sample: every sample still counts once. Only if fewer samples
// than batches are left, some of them are in two or more of those: no batch is without a sample.
//
// Not thread-safe. The batches must outlive it.
#pragma once

#include <cstdint>
#include <vector>

#include "worker/data/epoch_batches.h"

namespace lodestone::worker {

class StepBatches {
 public:
  // REQUIRES: step_batches > 0.
  StepBatches(EpochBatches* batches, uint32_t step_batches) : batches_(batches), step_batches_(step_batches) {}

  // Of the run; the last may be of another size.
  uint64_t steps() const { return (batches_->batches() + step_batches_ - 1) / step_batches_; }
  // Whole steps.
  uint64_t batches() const { return steps() * step_batches_; }

  // Fills `indices` with the batch of this number. REQUIRES: number < batches().
  void Read(uint64_t number, std::vector<uint64_t>* indices);

 private:
  // Of the last step, if it is no whole one.
  void ReadRest();

  EpochBatches* const batches_;
  const uint32_t step_batches_;
  std::vector<uint64_t> rest_;  // The samples of the last step, once they are needed.
};

}  // namespace lodestone::worker
