// Fully connected layers with activations between them, layer normalisation and dropout.
//
// Not thread-safe: Forward keeps what Backward needs. The tensors belong to the caller. All pointers are into the
// backend's memory, and all work is queued there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/linear_factors.h"
#include "kernels/scratch_array.h"
#include "worker/model/model_plan.h"

namespace lodestone::worker {

class Mlp {
 public:
  // In training, a share `dropout` of the outputs of each layer but the last is dropped.
  Mlp(std::vector<DenseLayer> layers, float dropout, kernels::Backend* backend);

  // Tensors, in order: for each layer its weight [in, out] and, with an activation, its bias [out].
  size_t tensor_count() const { return tensor_count_; }

  // x is [rows, in]. Returns the last layer's output [rows, out], which stays until the next call. Without a
  // `dropout_seed` nothing is dropped. REQUIRES: at least one layer.
  const float* Forward(size_t rows, const float* x, std::span<const float* const> tensors,
                       std::optional<uint64_t> dropout_seed);

  // The gradients of all tensors and, unless dx is null, of x, from dy [rows, out]. REQUIRES: x, rows and tensors are
  // those of the last Forward.
  void Backward(size_t rows, const float* x, std::span<const float* const> tensors, const float* dy,
                std::span<float* const> gradients, float* dx);

 private:
  bool Drops(size_t layer) const { return dropout_seed_ && dropout_ > 0 && layer + 1 < layers_.size(); }

  const std::vector<DenseLayer> layers_;
  const float dropout_;
  kernels::Backend* const backend_;
  size_t tensor_count_ = 0;
  // Of the last Forward.
  std::optional<uint64_t> dropout_seed_;
  std::vector<kernels::LinearFactors> factors_;           // Of each layer's product.
  std::vector<kernels::ScratchArray<float>> normalized_;  // Of each layer that normalises: what it makes of its sums,
  std::vector<kernels::ScratchArray<float>> inverses_;    // and the rows' inverse deviations.
  std::vector<kernels::ScratchArray<float>> inputs_;  // Of each layer's activation, where the backward pass needs them.
  std::vector<kernels::ScratchArray<float>> outputs_;    // Of each layer.
  std::vector<kernels::ScratchArray<float>> gradients_;  // With respect to outputs_.
};

}  // namespace lodestone::worker
