// Vectors of independent numbers that are functions of a seed alone, so that a planted model of any size is never
// stored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/base/random.h"

namespace lodestone::worker {

// Calls visit(i, x) for i = 0 … size - 1 with x uniform of mean 0 and variance 1 (in 256 steps): eight per hash, many
// times as fast as normal numbers.
template <typename Visitor>
void VisitHashedVector(uint64_t seed, size_t size, const Visitor& visit) {
  // The variance of the bytes' midpoints -127.5 … 127.5 is (256^2 - 1) / 12.
  constexpr float kScale = 0.013531646934131853f;  // sqrt(12 / 65535)
  for (size_t begin = 0; begin < size; begin += 8) {
    uint64_t bits = RandomBits(seed, begin);
    const size_t end = begin + 8 < size ? begin + 8 : size;
    for (size_t i = begin; i < end; ++i, bits >>= 8) {
      visit(i, (static_cast<float>(bits & 255) - 127.5f) * kScale);
    }
  }
}

// A nearly normal number of mean 0 and variance 1: the sum of eight uniform ones.
inline float HashedNormal(uint64_t seed) {
  float sum = 0;
  VisitHashedVector(seed, 8, [&](size_t, float x) { sum += x; });
  return sum * 0.35355339059327373f;
}

}  // namespace lodestone::worker
