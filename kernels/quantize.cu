// The numbers are those of quantize-inl.h, so each backend makes the same bytes.
#include "kernels/cuda_launch-inl.h"
#include "kernels/quantize-inl.h"
#include "kernels/quantize.h"

namespace lodestone::kernels {
namespace {

template <typename From, typename To, To (*kConvert)(From)>
struct ConvertBody {
  const From* x;
  To* y;
  template <typename Index>
  __device__ void operator()(Index i) const {
    y[i] = kConvert(x[i]);
  }
};

struct FromInt8Body {
  size_t block;
  const int8_t* x;
  const float* scales;
  float* y;
  template <typename Index>
  __device__ void operator()(Index i) const {
    y[i] = static_cast<float>(x[i]) * scales[i / block];
  }
};

// The larger of two magnitudes, and NaN if one of them is.
__device__ inline float LargerMagnitude(float a, float b) { return b <= a || isnan(a) ? a : b; }

// A warp per block of numbers.
__global__ void __launch_bounds__(kBlock)
    ToInt8Kernel(size_t n, size_t block, const float* x, float* error, int8_t* y, float* scales) {
  const size_t blocks = n / block + (n % block != 0);
  const unsigned lane = threadIdx.x % kWarp;
  for (size_t b = ThreadIndex() / kWarp; b < blocks; b += ThreadCount() / kWarp) {
    const size_t begin = b * block;
    const size_t end = n - begin < block ? n : begin + block;
    float largest = 0.0f;
    for (size_t i = begin + lane; i < end; i += kWarp) {
      largest = LargerMagnitude(largest, fabsf(error != nullptr ? x[i] + error[i] : x[i]));
    }
    for (unsigned other = kWarp / 2; other > 0; other /= 2) {
      largest = LargerMagnitude(largest, __shfl_xor_sync(0xffffffffu, largest, other));
    }
    const float scale = Int8Scale(largest);
    if (lane == 0) scales[b] = scale;
    for (size_t i = begin + lane; i < end; i += kWarp) {
      const float value = error != nullptr ? x[i] + error[i] : x[i];
      y[i] = Int8Of(value, scale);
      if (error != nullptr) error[i] = isfinite(scale) ? fmaf(-static_cast<float>(y[i]), scale, value) : 0.0f;
    }
  }
}

}  // namespace

void CudaBackend::ToBf16(size_t n, const float* x, uint16_t* y) {
  ForEach(this, "ToBf16", {n}, n, ConvertBody<float, uint16_t, Bf16Of>{x, y});
}

void CudaBackend::FromBf16(size_t n, const uint16_t* x, float* y) {
  ForEach(this, "FromBf16", {n}, n, ConvertBody<uint16_t, float, FloatOfBf16>{x, y});
}

void CudaBackend::ToF16(size_t n, const float* x, uint16_t* y) {
  ForEach(this, "ToF16", {n}, n, ConvertBody<float, uint16_t, F16Of>{x, y});
}

void CudaBackend::FromF16(size_t n, const uint16_t* x, float* y) {
  ForEach(this, "FromF16", {n}, n, ConvertBody<uint16_t, float, FloatOfF16>{x, y});
}

void CudaBackend::ToInt8(size_t n, size_t block, const float* x, float* error, int8_t* y, float* scales) {
  const size_t blocks = n / block + (n % block != 0);
  Launch(this, "ToInt8", {n, block}, GridFor(blocks * kWarp), ToInt8Kernel, n, block, x, error, y, scales);
}

void CudaBackend::FromInt8(size_t n, size_t block, const int8_t* x, const float* scales, float* y) {
  ForEach(this, "FromInt8", {n, block}, n, FromInt8Body{block, x, scales, y});
}

}  // namespace lodestone::kernels
