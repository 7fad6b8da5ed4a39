// A counter of bytes that stay in memory until a subscriber or follower has been sent them.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace lodestone::server {

class PinnedBytes {
 public:
  using Counter = std::shared_ptr<std::atomic<uint64_t>>;

  // Adds `bytes` to `counter` for its own lifetime.
  PinnedBytes(Counter counter, uint64_t bytes) : counter_(std::move(counter)), bytes_(bytes) {
    counter_->fetch_add(bytes_, std::memory_order_relaxed);
  }
  ~PinnedBytes() { counter_->fetch_sub(bytes_, std::memory_order_relaxed); }
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;

 private:
  const Counter counter_;
  const uint64_t bytes_;
};

}  // namespace lodestone::server
