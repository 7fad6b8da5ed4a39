// Time as an injected dependency, so that tests move it by hand.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace lodestone {

// Milliseconds on a clock that never goes back. Thread-safe.
class TimeSource {
 public:
  virtual ~TimeSource() = default;
  virtual int64_t NowMs() const = 0;
};

// The machine's clock since it was started (CLOCK_BOOTTIME). It also counts while the machine is suspended, so that a
// lease that ended meanwhile has ended.
class SteadyTime final : public TimeSource {
 public:
  int64_t NowMs() const override;  // In a simulation, of its clock.
};

// Milliseconds since 1970: the wall clock when this was made, and SteadyTime from there on. What is kept on disk
// counts by it, so that it means the same after a restart.
class AnchoredTime final : public TimeSource {
 public:
  AnchoredTime()
      : offset_ms_(
            std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
                .count() -
            steady_.NowMs()) {}
  int64_t NowMs() const override { return offset_ms_ + steady_.NowMs(); }

 private:
  const SteadyTime steady_;
  const int64_t offset_ms_;
};

// A clock that stands still until it is moved.
class ManualTime final : public TimeSource {
 public:
  int64_t NowMs() const override { return now_ms_.load(std::memory_order_relaxed); }
  void AdvanceMs(int64_t ms) { now_ms_.fetch_add(ms, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_ms_{1'000'000};
};

}  // namespace lodestone
