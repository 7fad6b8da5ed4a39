// What a training step gives, in one piece of memory, so that it comes from a device in one copy: the gradients of all
// tables, the sum of the samples' losses, and a prediction for each sample.
//
// Not thread-safe. The backend must outlive it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/scratch_array.h"

namespace lodestone::worker {

class StepOutputs {
 public:
  explicit StepOutputs(kernels::Backend* backend) : memory_(backend, kernels::Memory::kHost) {}

  // Makes room for so many floats of gradients per table and so many predictions. Keeps nothing of before.
  void Lay(std::span<const size_t> gradient_floats, size_t samples);

  // In the host's memory; null where there was none for it.
  float* data() { return memory_.data(); }
  const float* data() const { return memory_.data(); }
  size_t floats() const { return memory_.size(); }
  size_t gradient_floats(size_t table) const { return gradients_[table].floats; }

  // Where they are in a piece that begins at `base`: this one, or one of the same size in a device's memory. They
  // begin at multiples of 64 floats.
  template <typename Float>
  Float* GradientIn(Float* base, size_t table) const {
    return base + gradients_[table].offset;
  }
  template <typename Float>
  Float* PredictionsIn(Float* base) const {
    return base + predictions_;
  }
  double* LossIn(float* base) const { return reinterpret_cast<double*>(base + loss_); }
  const double* LossIn(const float* base) const { return reinterpret_cast<const double*>(base + loss_); }

 private:
  struct Gradient {
    size_t offset = 0;
    size_t floats = 0;
  };

  std::vector<Gradient> gradients_;  // Per table.
  size_t loss_ = 0;
  size_t predictions_ = 0;
  kernels::ScratchArray<float> memory_;
};

}  // namespace lodestone::worker
