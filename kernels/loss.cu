// The formulas are loss.cc's. Terms are float, sums of them double, added up in two passes of fixed shape.
#include <cmath>

#include "kernels/cuda_launch-inl.h"
#include "kernels/loss.h"

namespace lodestone::kernels {
namespace {

constexpr size_t kLossBlocksMax = 512;

// The sum of all threads' values of a block, for thread 0. All threads must call it.
__device__ inline double BlockSum(double value) {
  __shared__ double sums[kBlock];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (unsigned other = kBlock / 2; other > 0; other /= 2) {
    if (threadIdx.x < other) sums[threadIdx.x] += sums[threadIdx.x + other];
    __syncthreads();
  }
  return sums[0];
}

struct LogisticBody {
  float scale;
  const float* logits;
  const float* labels;
  const float* weights;
  float* dlogits;
  float* predictions;
  __device__ double operator()(size_t r) const {
    const float z = logits[r], y = labels[r];
    const float w = weights == nullptr ? 1.0f : weights[r];
    const float e = expf(-fabsf(z));
    const float p = (z < 0.0f ? e : 1.0f) / (1.0f + e);
    if (predictions != nullptr) predictions[r] = p;
    if (dlogits != nullptr) dlogits[r] = (p - y) * (scale * w);
    return (fmaf(-z, y, z < 0.0f ? 0.0f : z) + log1pf(e)) * w;
  }
};

struct SquaredBody {
  float scale;
  const float* logits;
  const float* labels;
  const float* weights;
  float* dlogits;
  float* predictions;
  __device__ double operator()(size_t r) const {
    const float error = logits[r] - labels[r];
    const float w = weights == nullptr ? 1.0f : weights[r];
    if (predictions != nullptr) predictions[r] = logits[r];
    if (dlogits != nullptr) dlogits[r] = error * (scale * w);
    return 0.5 * static_cast<double>(error) * static_cast<double>(w) * static_cast<double>(error);
  }
};

// One thread per row, and one sum per block.
template <typename Body>
__global__ void __launch_bounds__(kBlock) LossKernel(size_t rows, Body body, double* sums) {
  double sum = 0;
  for (size_t r = ThreadIndex(); r < rows; r += ThreadCount()) sum += body(r);
  sum = BlockSum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// The index of the largest of `lanes` lanes' (value, index), the first of equals. All of a warp must call it.
__device__ inline void LargestOfLanes(unsigned lanes, float* value, size_t* index) {
  for (unsigned other = lanes / 2; other > 0; other /= 2) {
    const float their_value = __shfl_xor_sync(0xffffffffu, *value, other);
    const unsigned long long their_index = __shfl_xor_sync(0xffffffffu, static_cast<unsigned long long>(*index), other);
    if (their_value > *value || (their_value == *value && their_index < *index)) {
      *value = their_value;
      *index = their_index;
    }
  }
}

// `lanes` threads per row, a power of two up to a warp, and one sum per block.
__global__ void __launch_bounds__(kBlock)
    SoftmaxKernel(size_t rows, size_t classes, unsigned lanes, float scale, const float* logits, const float* labels,
                  const float* weights, float* dlogits, float* predictions, double* sums) {
  const unsigned lane = threadIdx.x % lanes;
  double loss = 0;
  // All threads of a warp go round together, since all take part in what is done across lanes.
  size_t base = ThreadIndex() / kWarp * kWarp / lanes;
  for (; base < rows; base += ThreadCount() / lanes) {
    const size_t r = base + threadIdx.x % kWarp / lanes;
    const bool real = r < rows;
    const float* const z = logits + (real ? r : 0) * classes;
    // NaN is never larger; it shows in the sum.
    float largest = -INFINITY;
    size_t index = real && lane < classes ? lane : 0;
    for (size_t c = lane; real && c < classes; c += lanes) {
      if (z[c] > largest) {
        largest = z[c];
        index = c;
      }
    }
    LargestOfLanes(lanes, &largest, &index);
    double sum = 0;
    for (size_t c = lane; real && c < classes; c += lanes) sum += static_cast<double>(expf(z[c] - largest));
    for (unsigned other = lanes / 2; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
    if (!real) continue;  // All of a warp's other rows go on to the same place.
    const float label = labels[r], weight = weights == nullptr ? 1.0f : weights[r];
    const float row_scale = scale * weight;
    const bool known = label >= 0.0f && label < static_cast<float>(classes);
    const size_t at = known ? static_cast<size_t>(label) : classes;
    if (dlogits != nullptr) {
      const float factor = known ? static_cast<float>(row_scale / sum) : NAN;
      for (size_t c = lane; c < classes; c += lanes) {
        const float share = expf(z[c] - largest) * factor;
        dlogits[r * classes + c] = c == at ? share - row_scale : share;
      }
    }
    if (lane != 0) continue;
    if (predictions != nullptr) predictions[r] = static_cast<float>(index);
    loss += weight * (known ? log(sum) - (static_cast<double>(z[at]) - largest) : static_cast<double>(NAN));
  }
  loss = BlockSum(loss);
  if (threadIdx.x == 0) sums[blockIdx.x] = loss;
}

__global__ void __launch_bounds__(kBlock) AddSumsKernel(size_t n, const double* sums, double* to) {
  double sum = 0;
  for (size_t i = threadIdx.x; i < n; i += kBlock) sum += sums[i];
  sum = BlockSum(sum);
  if (threadIdx.x == 0) *to = sum;
}

// Starts `kernel` with room for a sum per block as its last argument, and adds those up.
template <typename... Parameters, typename... Arguments>
void LaunchLoss(CudaBackend* backend, const char* operation, std::initializer_list<size_t> shape, size_t threads,
                double* loss_sum, void (*kernel)(Parameters...), Arguments... arguments) {
  Grid grid = GridFor(threads);
  grid.blocks = std::min(grid.blocks, kLossBlocksMax);
  if (grid.blocks == 0) {
    if (backend->Ready()) {
      backend->Started(operation, shape,
                       cudaMemsetAsync(loss_sum, 0, sizeof(double), backend->stream(Queue::kCompute)));
    }
    return;
  }
  double* const sums =
      static_cast<double*>(backend->ScratchOf(CudaBackend::Scratch::kReduction, kLossBlocksMax * sizeof(double)));
  if (sums == nullptr) return;
  Launch(backend, operation, shape, grid, kernel, arguments..., sums);
  Launch(backend, operation, shape, {1, kBlock, 0}, AddSumsKernel, grid.blocks, sums, loss_sum);
}

}  // namespace

void CudaBackend::LogisticLoss(size_t rows, const float* logits, const float* labels, const float* weights,
                               float* dlogits, float* predictions, double* loss_sum) {
  const LogisticBody body{1.0f / static_cast<float>(rows), logits, labels, weights, dlogits, predictions};
  LaunchLoss(this, "LogisticLoss", {rows}, rows, loss_sum, LossKernel<LogisticBody>, rows, body);
}

void CudaBackend::SoftmaxLoss(size_t rows, size_t classes, const float* logits, const float* labels,
                              const float* weights, float* dlogits, float* predictions, double* loss_sum) {
  unsigned lanes = 1;
  while (lanes < kWarp && lanes < classes) lanes *= 2;
  LaunchLoss(this, "SoftmaxLoss", {rows, classes}, classes == 0 ? 0 : rows * lanes, loss_sum, SoftmaxKernel, rows,
             classes, lanes, 1.0f / static_cast<float>(rows), logits, labels, weights, dlogits, predictions);
}

void CudaBackend::SquaredLoss(size_t rows, const float* logits, const float* labels, const float* weights,
                              float* dlogits, float* predictions, double* loss_sum) {
  const SquaredBody body{1.0f / static_cast<float>(rows), logits, labels, weights, dlogits, predictions};
  LaunchLoss(this, "SquaredLoss", {rows}, rows, loss_sum, LossKernel<SquaredBody>, rows, body);
}

}  // namespace lodestone::kernels
