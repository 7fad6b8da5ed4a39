// One number at a time between float and the smaller types, by integer arithmetic, which gives the same bits on every
// backend. The CPU's and CUDA's kernels are loops over these.
#pragma once

#include <cmath>
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

// IEEE 754 half precision, rounded to nearest, ties to even; too large becomes infinite, NaN stays NaN.
LODESTONE_HOST_DEVICE inline uint16_t F16Of(float x) {
  const uint32_t bits = BitsOf(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 2^16 and more.
  if (magnitude < 0x38800000u) {  // Below 2^-14, where halves have a fixed step of 2^-24.
    if (magnitude < 0x33000000u) return static_cast<uint16_t>(sign);  // Below half a step.
    const uint32_t shift = 126u - (magnitude >> 23);                  // 14 … 24
    const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t rest = mantissa & ((1u << shift) - 1u);
    const uint32_t half = 1u << (shift - 1u);
    uint32_t steps = mantissa >> shift;
    if (rest > half || (rest == half && (steps & 1u))) ++steps;
    return static_cast<uint16_t>(sign | steps);
  }
  // The exponent's bias goes from 127 to 15; a carry out of the mantissa raises it, up to infinity.
  const uint32_t rounded = magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

LODESTONE_HOST_DEVICE inline float FloatOfF16(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000u) << 16;
  const uint32_t magnitude = x & 0x7fffu;
  if (magnitude >= 0x7c00u) return FloatOf(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude < 0x400u) {
    const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // Steps of 2^-24.
    return FloatOf(sign | BitsOf(value));
  }
  return FloatOf(sign | ((magnitude << 13) + (112u << 23)));
}

constexpr float kInt8Max = 127.0f;

// The step of a block whose largest magnitude is `largest`: 127 of them reach it. 0 if the block is all zeros; NaN or
// infinite if the block holds such a number.
LODESTONE_HOST_DEVICE inline float Int8Scale(float largest) { return largest / kInt8Max; }

// x in steps of `scale`, rounded to nearest, ties to even.
LODESTONE_HOST_DEVICE inline int8_t Int8Of(float x, float scale) {
  if (!(scale > 0.0f) || !(scale <= 3.402823466e38f)) return 0;
  const float steps = rintf(x / scale);
  // A scale in the subnormal range may be rounded down by as much as a half.
  const float inside = steps > kInt8Max ? kInt8Max : steps < -kInt8Max ? -kInt8Max : steps;
  return static_cast<int8_t>(inside);
}

}  // namespace lodestone::kernels
