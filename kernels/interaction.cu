// DLRM's interaction, and mixtures of experts; the formulas are embedding.h's. One block per sample. An interaction's
// vectors lie in shared memory, each one float longer than it is, so that threads that read the same element of
// different vectors meet in different banks. Where that does not fit (48 KiB: about 100 vectors of 100), threads read
// the sample where it is. Of a mixture only the gates are in shared memory: each element of x is read once.
#include "kernels/cuda_launch-inl.h"
#include "kernels/embedding.h"

namespace lodestone::kernels {
namespace {

constexpr unsigned kInteractionBlock = 128;

// The pair's larger vector: the greatest i with i (i - 1) / 2 <= pair.
__device__ inline size_t LargerOf(size_t pair) {
  size_t i = static_cast<size_t>((1.0f + sqrtf(1.0f + 8.0f * static_cast<float>(pair))) * 0.5f);
  // The root is rounded.
  while (i * (i - 1) / 2 > pair) --i;
  while (i * (i + 1) / 2 <= pair) ++i;
  return i;
}

// A sample's vectors, in shared memory or where they were.
struct Vectors {
  const float* data;
  size_t step;  // From one to the next.
  __device__ float At(size_t v, size_t d) const { return data[v * step + d]; }
};

__device__ inline void CopyVectors(size_t vectors, size_t dim, const float* x, float* to) {
  for (size_t i = threadIdx.x; i < vectors * dim; i += blockDim.x) to[i / dim * (dim + 1) + i % dim] = x[i];
}

template <bool kShared>
__global__ void __launch_bounds__(kInteractionBlock)
    DotInteractionKernel(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col,
                         float* out) {
  LODESTONE_DYNAMIC_SHARED(float, shared);
  const size_t pairs = vectors * (vectors - 1) / 2;
  for (size_t s = blockIdx.x; s < samples; s += gridDim.x) {
    const float* const sample = x + s * vectors * dim;
    if (kShared) {
      CopyVectors(vectors, dim, sample, shared);
      __syncthreads();
    }
    const Vectors v = kShared ? Vectors{shared, dim + 1} : Vectors{sample, dim};
    for (size_t pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
      const size_t i = LargerOf(pair), j = pair - i * (i - 1) / 2;
      float sum = 0.0f;
      for (size_t d = 0; d < dim; ++d) sum = fmaf(v.At(i, d), v.At(j, d), sum);
      out[s * stride + col + pair] = sum;
    }
    if (kShared) __syncthreads();  // Before the next sample is copied there.
  }
}

template <bool kShared>
__global__ void __launch_bounds__(kInteractionBlock)
    DotInteractionBackwardKernel(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col,
                                 const float* dout, float* dx) {
  LODESTONE_DYNAMIC_SHARED(float, shared);
  const size_t pairs = vectors * (vectors - 1) / 2;
  float* const shared_pairs = shared + vectors * (dim + 1);
  for (size_t s = blockIdx.x; s < samples; s += gridDim.x) {
    const float* const sample = x + s * vectors * dim;
    const float* gradients = dout + s * stride + col;
    if (kShared) {
      CopyVectors(vectors, dim, sample, shared);
      for (size_t pair = threadIdx.x; pair < pairs; pair += blockDim.x) shared_pairs[pair] = gradients[pair];
      __syncthreads();
      gradients = shared_pairs;
    }
    const Vectors v = kShared ? Vectors{shared, dim + 1} : Vectors{sample, dim};
    for (size_t at = threadIdx.x; at < vectors * dim; at += blockDim.x) {
      const size_t i = at / dim, d = at % dim;
      float sum = 0.0f;
      for (size_t j = 0; j < i; ++j) sum = fmaf(gradients[i * (i - 1) / 2 + j], v.At(j, d), sum);
      for (size_t j = i + 1; j < vectors; ++j) sum = fmaf(gradients[j * (j - 1) / 2 + i], v.At(j, d), sum);
      dx[s * vectors * dim + at] += sum;
    }
    if (kShared) __syncthreads();  // Before the next sample is copied there.
  }
}

__global__ void __launch_bounds__(kInteractionBlock)
    MixExpertsKernel(size_t samples, size_t experts, size_t dim, const float* x, float* gates, float* out) {
  LODESTONE_DYNAMIC_SHARED(float, shared);
  for (size_t s = blockIdx.x; s < samples; s += gridDim.x) {
    float* const gate = gates + s * experts;
    for (size_t e = threadIdx.x; e < experts; e += blockDim.x) shared[e] = gate[e];
    __syncthreads();
    float largest = -INFINITY;
    for (size_t e = 0; e < experts; ++e) largest = shared[e] > largest ? shared[e] : largest;
    double sum = 0;
    for (size_t e = 0; e < experts; ++e) sum += expf(shared[e] - largest);
    const float share = static_cast<float>(1 / sum);
    __syncthreads();  // All have read the logits.
    for (size_t e = threadIdx.x; e < experts; e += blockDim.x) {
      shared[e] = expf(shared[e] - largest) * share;
      gate[e] = shared[e];
    }
    __syncthreads();
    for (size_t d = threadIdx.x; d < dim; d += blockDim.x) {
      float mixed = 0.0f;
      for (size_t e = 0; e < experts; ++e) mixed = fmaf(shared[e], x[(e * samples + s) * dim + d], mixed);
      out[s * dim + d] = mixed;
    }
    __syncthreads();  // Before the next sample's gates come there.
  }
}

// A warp has an expert.
__global__ void __launch_bounds__(kInteractionBlock)
    MixExpertsBackwardKernel(size_t samples, size_t experts, size_t dim, const float* x, const float* gates,
                             const float* dout, float* dgates, float* dx) {
  LODESTONE_DYNAMIC_SHARED(float, shared);
  const unsigned lane = threadIdx.x % kWarp;
  for (size_t s = blockIdx.x; s < samples; s += gridDim.x) {
    const float* const gate = gates + s * experts;
    const float* const down = dout + s * dim;
    for (size_t e = threadIdx.x / kWarp; e < experts; e += blockDim.x / kWarp) {
      const size_t at = (e * samples + s) * dim;
      float product = 0.0f;
      for (size_t d = lane; d < dim; d += kWarp) {
        product = fmaf(down[d], x[at + d], product);
        dx[at + d] = fmaf(gate[e], down[d], dx[at + d]);
      }
      for (unsigned other = kWarp / 2; other > 0; other /= 2) product += __shfl_xor_sync(0xffffffffu, product, other);
      if (lane == 0) shared[e] = product;
    }
    __syncthreads();
    float mean = 0.0f;
    for (size_t e = 0; e < experts; ++e) mean = fmaf(gate[e], shared[e], mean);
    for (size_t e = threadIdx.x; e < experts; e += blockDim.x) {
      dgates[s * experts + e] = gate[e] * (shared[e] - mean);
    }
    __syncthreads();  // Before the next sample's products come there.
  }
}

}  // namespace

void CudaBackend::DotInteraction(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride, size_t col,
                                 float* out) {
  if (vectors < 2) return;
  const size_t bytes = vectors * (dim + 1) * sizeof(float);
  const bool fits = bytes <= kSharedMax;
  Launch(this, "DotInteraction", {samples, vectors, dim},
         {std::min(samples, kBlocksMax), kInteractionBlock, fits ? bytes : 0},
         fits ? DotInteractionKernel<true> : DotInteractionKernel<false>, samples, vectors, dim, x, stride, col, out);
}

void CudaBackend::DotInteractionBackward(size_t samples, size_t vectors, size_t dim, const float* x, size_t stride,
                                         size_t col, const float* dout, float* dx) {
  if (vectors < 2) return;
  const size_t bytes = (vectors * (dim + 1) + vectors * (vectors - 1) / 2) * sizeof(float);
  const bool fits = bytes <= kSharedMax;
  Launch(this, "DotInteractionBackward", {samples, vectors, dim},
         {std::min(samples, kBlocksMax), kInteractionBlock, fits ? bytes : 0},
         fits ? DotInteractionBackwardKernel<true> : DotInteractionBackwardKernel<false>, samples, vectors, dim, x,
         stride, col, dout, dx);
}

void CudaBackend::MixExperts(size_t samples, size_t experts, size_t dim, const float* x, float* gates, float* out) {
  Launch(this, "MixExperts", {samples, experts, dim},
         {std::min(samples, kBlocksMax), kInteractionBlock, experts * sizeof(float)}, MixExpertsKernel, samples,
         experts, dim, x, gates, out);
}

void CudaBackend::MixExpertsBackward(size_t samples, size_t experts, size_t dim, const float* x, const float* gates,
                                     const float* dout, float* dgates, float* dx) {
  Launch(this, "MixExpertsBackward", {samples, experts, dim},
         {std::min(samples, kBlocksMax), kInteractionBlock, experts * sizeof(float)}, MixExpertsBackwardKernel, samples,
         experts, dim, x, gates, dout, dgates, dx);
}

}  // namespace lodestone::kernels
