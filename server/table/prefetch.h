// The prefetch of rows into the processor's caches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace lodestone::server {

// The first `bytes` of a row, or as many as it takes for the processor itself to fetch the rest.
inline void PrefetchRow(const void* row, size_t bytes) {
  constexpr size_t kCacheLine = 64;
  constexpr size_t kBytesMax = 512;
  const auto* const begin = static_cast<const uint8_t*>(row);
  __builtin_prefetch(begin);
  for (size_t at = kCacheLine; at < std::min(bytes, kBytesMax); at += kCacheLine) __builtin_prefetch(begin + at);
}

}  // namespace lodestone::server
