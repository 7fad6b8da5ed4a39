// Counts the payload bytes that this process copies in user space on their way between a caller's memory and a socket,
// for benchmarks: what should be near 0 for a byte pushed and 1 for a byte pulled.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lodestone {

namespace internal {
inline std::atomic<uint64_t> copied_bytes{0};
}  // namespace internal

// Once per message, not per copy.
inline void CountCopied(size_t bytes) { internal::copied_bytes.fetch_add(bytes, std::memory_order_relaxed); }
inline uint64_t CopiedBytes() { return internal::copied_bytes.load(std::memory_order_relaxed); }

}  // namespace lodestone
