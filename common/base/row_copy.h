// Copies of embedding rows from and to random places: a few cache lines each, which are fetched some rows ahead.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace lodestone {

// How many rows ahead of a copy the next ones are fetched. Chosen, not measured: a copy takes some ten nanoseconds, and
// a line from memory some hundred.
inline constexpr size_t kRowsAhead = 8;

// memcpy of `floats` floats, neither end aligned; inlined for the usual rows, where a call costs as much as the copy.
inline void CopyRow(const void* from, size_t floats, void* to) {
  constexpr size_t kInlinedMax = 64;
  constexpr size_t kStep = 4;
  if (floats % kStep != 0 || floats > kInlinedMax) {
    std::memcpy(to, from, floats * sizeof(float));
    return;
  }
  const auto* const begin = static_cast<const uint8_t*>(from);
  auto* const out = static_cast<uint8_t*>(to);
  for (size_t at = 0; at < floats * sizeof(float); at += kStep * sizeof(float)) {
    std::memcpy(out + at, begin + at, kStep * sizeof(float));
  }
}

enum class RowUse { kRead, kWrite };

// Brings the first `bytes` of a row into the cache, or as many as it takes for the processor itself to fetch the rest.
template <RowUse use = RowUse::kRead>
inline void PrefetchRow(const void* row, size_t bytes) {
  constexpr size_t kCacheLine = 64;
  constexpr size_t kBytesMax = 512;
  constexpr int kForWriting = use == RowUse::kWrite ? 1 : 0;
  const auto begin = reinterpret_cast<uintptr_t>(row);  // Of any address: null, which no pointer may be added to, too.
  __builtin_prefetch(row, kForWriting);
  for (size_t at = kCacheLine; at < std::min(bytes, kBytesMax); at += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(begin + at), kForWriting);
  }
}

}  // namespace lodestone
