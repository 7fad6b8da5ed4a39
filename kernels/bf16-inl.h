// Conversion between float and bf16, one number at a time, by integer arithmetic, which gives the same bits everywhere.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define LODESTONE_HOST_DEVICE __host__ __device__
#else
#define LODESTONE_HOST_DEVICE
#endif

namespace lodestone::kernels {

LODESTONE_HOST_DEVICE inline uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

LODESTONE_HOST_DEVICE inline float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// bf16: a float's upper half, rounded to nearest, ties to even. NaN stays NaN.
LODESTONE_HOST_DEVICE inline uint16_t Bf16Of(float x) {
  const uint32_t bits = BitsOf(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

LODESTONE_HOST_DEVICE inline float FloatOfBf16(uint16_t x) { return FloatOf(static_cast<uint32_t>(x) << 16); }

}  // namespace lodestone::kernels
