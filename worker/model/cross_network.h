// The cross network of DCN-V2 (Wang et al. 2021, equations 1 and 2): x_{l+1} = x_0 * (x_l W_l + b_l) + x_l, multiplied
// element by element, with W_l full or the product of two narrow matrices.
//
// Not thread-safe: Forward keeps what Backward needs. The tensors belong to the caller. All pointers are into the
// backend's memory, and all work is queued there.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/linear_factors.h"
#include "kernels/scratch_array.h"

namespace lodestone::worker {

class CrossNetwork {
 public:
  // Of vectors of `width` elements. `rank`: of the matrices; 0: they are full.
  CrossNetwork(size_t width, size_t layers, size_t rank, kernels::Backend* backend);

  // Tensors, in order: for each layer its weight [width, width], or down [width, rank] and up [rank, width]; then its
  // bias [width].
  size_t tensor_count() const { return layers_.size() * per_layer_; }

  // x is [rows, width]. Returns the last x, [rows, width], which stays until the next call.
  const float* Forward(size_t rows, const float* x, std::span<const float* const> tensors);

  // From dy, [rows, width]: writes the gradients of all tensors, and that of x unless dx is null. REQUIRES: rows, x and
  // tensors are those of the last Forward.
  void Backward(size_t rows, const float* x, std::span<const float* const> tensors, const float* dy,
                std::span<float* const> gradients, float* dx);

 private:
  struct Layer {
    kernels::ScratchArray<float> narrow;   // x_l down, [rows, rank].
    kernels::ScratchArray<float> product;  // x_l W + b, [rows, width].
    kernels::ScratchArray<float> out;      // x_{l+1}, [rows, width].
    kernels::LinearFactors factors;        // Of the product by weight or down,
    kernels::LinearFactors up_factors;     // and by up.
  };

  const size_t width_;
  const size_t rank_;
  const size_t per_layer_;  // Tensors.
  kernels::Backend* const backend_;
  std::vector<Layer> layers_;          // Of the last Forward.
  kernels::ScratchArray<float> dout_;  // With respect to x_{l+1}.
  kernels::ScratchArray<float> dproduct_;
  kernels::ScratchArray<float> dnarrow_;
};

}  // namespace lodestone::worker
