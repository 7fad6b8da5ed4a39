// Random tokens that identify one run of a process.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>

namespace lodestone {

// 64 bits from the machine's own randomness, never 0. Thread-safe.
inline uint64_t DrawNonce() {
  std::random_device device;
  return std::max<uint64_t>(1, (uint64_t{device()} << 32) | device());
}

}  // namespace lodestone
