// The elements that dropout drops: a function of (seed, index) alone, the same on every backend.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace lodestone::kernels {

// Elements come in runs of this many, each with keys of its own.
constexpr uint64_t kDropoutRun = uint64_t{1} << 32;

// SplitMix64's finalizer (Steele, Lea, Flood 2014).
inline uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Element i of the run goes if Mix(Mix(i ^ key0) + key1) < threshold, where Mix is one round of a 32-bit mixer
// (Wellons, "Hash Prospector": low bias); the others are multiplied by `scale`.
struct DropoutFate {
  uint32_t threshold = 0;
  float scale = 1;
  uint32_t key0 = 0;
  uint32_t key1 = 0;
};

// REQUIRES: 0 < rate < 1.
inline DropoutFate FateOf(float rate, uint64_t seed, uint64_t run) {
  const uint64_t key = Mix64(Mix64(seed) + run);
  return {static_cast<uint32_t>(std::ldexp(static_cast<double>(rate), 32)), 1.0f / (1.0f - rate),
          static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)};
}

}  // namespace lodestone::kernels
