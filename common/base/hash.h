// Hashes that never change: they decide where data lives and what untouched parameters are.
#pragma once

#include <cstdint>
#include <string_view>

namespace lodestone {

// Bijective mixing of 64 bits (the finalizer of Steele et al. 2014, SplitMix64).
inline constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// What StableHash of so many bytes under `salt` begins with.
inline constexpr uint64_t StableHashStart(uint64_t salt, uint64_t size) {
  return Mix64(salt ^ (0xff51afd7ed558ccdull * (size + 1)));
}

// StableHash of 8 bytes, the first one lowest in `word`; `start`: StableHashStart(salt, 8).
inline constexpr uint64_t StableHashOfWord(uint64_t start, uint64_t word) { return Mix64(Mix64(start ^ word)); }

// Hash of `bytes` under `salt`, the same on every machine and in every release.
inline constexpr uint64_t StableHash(std::string_view bytes, uint64_t salt = 0) {
  uint64_t h = StableHashStart(salt, bytes.size());
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    for (int b = 0; b < 8; ++b) word |= uint64_t{static_cast<unsigned char>(bytes[i + b])} << (8 * b);
    h = Mix64(h ^ word);
  }
  uint64_t tail = 0;
  for (int b = 0; i < bytes.size(); ++i, ++b) tail |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * b);
  return Mix64(h ^ tail);
}

}  // namespace lodestone
