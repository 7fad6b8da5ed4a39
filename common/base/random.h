// Counter-based random numbers: the n-th number of a stream is a function of (seed, n), so that streams can be entered
// anywhere, in any order, by any process, with the same result.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/base/hash.h"

namespace lodestone {

// The seed of the stream `name` within `seed`.
inline constexpr uint64_t StreamSeed(uint64_t seed, uint64_t name) { return Mix64(Mix64(seed) ^ name); }

// 64 uniform bits: number `n` of the stream `seed`.
inline constexpr uint64_t RandomBits(uint64_t seed, uint64_t n) { return Mix64(seed + Mix64(n)); }

// Uniform in [0, 1): number `n` of the stream `seed`.
inline constexpr double RandomUniform(uint64_t seed, uint64_t n) {
  return static_cast<double>(RandomBits(seed, n) >> 11) * 0x1.0p-53;
}

// Standard normal (Box and Muller 1958): number `n` of the stream `seed`.
inline double RandomNormal(uint64_t seed, uint64_t n) {
  const double u = 1.0 - RandomUniform(seed, 2 * n);  // in (0, 1]
  const double v = RandomUniform(seed, 2 * n + 1);
  return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
}

}  // namespace lodestone
