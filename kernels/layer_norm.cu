// The formulas are layer_norm.cc's. A warp has a row: neighbours read neighbours, and sums have a fixed shape.
#include "kernels/cuda_launch-inl.h"
#include "kernels/layer_norm.h"

namespace lodestone::kernels {
namespace {

// The sum of a warp's values, for each of its threads.
__device__ inline float WarpSum(float value) {
  for (unsigned other = kWarp / 2; other > 0; other /= 2) value += __shfl_xor_sync(0xffffffffu, value, other);
  return value;
}

__global__ void __launch_bounds__(kBlock)
    LayerNormKernel(size_t rows, size_t cols, float epsilon, float* x, float* inverse) {
  const unsigned lane = threadIdx.x % kWarp;
  const float share = 1.0f / static_cast<float>(cols);
  for (size_t r = ThreadIndex() / kWarp; r < rows; r += ThreadCount() / kWarp) {
    float* const row = x + r * cols;
    float sum = 0.0f;
    for (size_t c = lane; c < cols; c += kWarp) sum += row[c];
    const float mean = WarpSum(sum) * share;
    float squares = 0.0f;
    for (size_t c = lane; c < cols; c += kWarp) squares = fmaf(row[c] - mean, row[c] - mean, squares);
    const float scale = 1.0f / sqrtf(WarpSum(squares) * share + epsilon);
    for (size_t c = lane; c < cols; c += kWarp) row[c] = (row[c] - mean) * scale;
    if (lane == 0) inverse[r] = scale;
  }
}

__global__ void __launch_bounds__(kBlock)
    LayerNormBackwardKernel(size_t rows, size_t cols, const float* y, const float* inverse, float* dx) {
  const unsigned lane = threadIdx.x % kWarp;
  const float share = 1.0f / static_cast<float>(cols);
  for (size_t r = ThreadIndex() / kWarp; r < rows; r += ThreadCount() / kWarp) {
    const float* const out = y + r * cols;
    float* const row = dx + r * cols;
    float sum = 0.0f, products = 0.0f;
    for (size_t c = lane; c < cols; c += kWarp) {
      sum += row[c];
      products = fmaf(row[c], out[c], products);
    }
    const float mean = WarpSum(sum) * share, along = WarpSum(products) * share;
    for (size_t c = lane; c < cols; c += kWarp) row[c] = fmaf(-out[c], along, row[c] - mean) * inverse[r];
  }
}

}  // namespace

void CudaBackend::LayerNorm(size_t rows, size_t cols, float epsilon, float* x, float* inverse) {
  Launch(this, "LayerNorm", {rows, cols}, GridFor(rows * kWarp), LayerNormKernel, rows, cols, epsilon, x, inverse);
}

void CudaBackend::LayerNormBackward(size_t rows, size_t cols, const float* y, const float* inverse, float* dx) {
  Launch(this, "LayerNormBackward", {rows, cols}, GridFor(rows * kWarp), LayerNormBackwardKernel, rows, cols, y,
         inverse, dx);
}

}  // namespace lodestone::kernels
