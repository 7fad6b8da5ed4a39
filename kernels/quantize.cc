#include "kernels/quantize.h"

#include <algorithm>
#include <cmath>

#include "kernels/quantize-inl.h"

namespace lodestone::kernels::cpu {

void ToBf16(size_t n, const float* x, uint16_t* y) {
  for (size_t i = 0; i < n; ++i) y[i] = Bf16Of(x[i]);
}

void FromBf16(size_t n, const uint16_t* x, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = FloatOfBf16(x[i]);
}

void ToF16(size_t n, const float* x, uint16_t* y) {
  for (size_t i = 0; i < n; ++i) y[i] = F16Of(x[i]);
}

void FromF16(size_t n, const uint16_t* x, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = FloatOfF16(x[i]);
}

void ToInt8(size_t n, size_t block, const float* x, float* error, int8_t* y, float* scales) {
  for (size_t begin = 0; begin < n; begin += block, ++scales) {
    const size_t end = std::min(n, begin + block);
    float largest = 0.0f;
    for (size_t i = begin; i < end; ++i) {
      const float magnitude = std::fabs(error != nullptr ? x[i] + error[i] : x[i]);
      if (!(magnitude <= largest)) largest = std::isnan(largest) ? largest : magnitude;
    }
    *scales = Int8Scale(largest);
    for (size_t i = begin; i < end; ++i) {
      const float value = error != nullptr ? x[i] + error[i] : x[i];
      y[i] = Int8Of(value, *scales);
      if (error != nullptr)
        error[i] = std::isfinite(*scales) ? std::fma(-static_cast<float>(y[i]), *scales, value) : 0.0f;
    }
  }
}

void FromInt8(size_t n, size_t block, const int8_t* x, const float* scales, float* y) {
  for (size_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i]) * scales[i / block];
}

}  // namespace lodestone::kernels::cpu
