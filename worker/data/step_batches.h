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
  // The same with part `part` of step_batches equal ones of the samples of these batches of the run. REQUIRES: part <
  // step_batches; the numbers of batches of the run, in order.
  void ReadPart(const std::vector<uint64_t>& numbers, uint32_t part, std::vector<uint64_t>* indices);
  // The batch of the run of this number. REQUIRES: there is one.
  void ReadWhole(uint64_t number, std::vector<uint64_t>* indices) { batches_->Read(number, indices); }

 private:
  EpochBatches* const batches_;
  const uint32_t step_batches_;
  // The batches that were last cut into parts, and their samples.
  std::vector<uint64_t> cut_;
  std::vector<uint64_t> cut_samples_;
};

}  // namespace lodestone::worker
