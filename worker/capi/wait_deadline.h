// The end of a wait that a caller of the C interface bounds.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace lodestone::worker {

// When a wait of `timeout_ms` that begins now ends; nullopt: never. Never is also what no clock would reach (a
// century).
inline std::optional<std::chrono::steady_clock::time_point> WaitDeadline(int64_t timeout_ms) {
  constexpr int64_t kForeverMs = 100LL * 365 * 24 * 3600 * 1000;
  if (timeout_ms < 0 || timeout_ms >= kForeverMs) return std::nullopt;
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
}

}  // namespace lodestone::worker
