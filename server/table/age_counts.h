// The distribution of the ages of contributions: how many steps their tokens were behind when their step was applied.
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lodestone::server {

class AgeCounts {
 public:
  // Greater ages count as this one in the quantiles, not in the maximum.
  static constexpr uint64_t kAgeMax = 63;

  void Add(uint64_t age) {
    counts_[std::min(age, kAgeMax)].fetch_add(1, std::memory_order_relaxed);
    uint64_t before = max_.load(std::memory_order_relaxed);
    while (before < age && !max_.compare_exchange_weak(before, age, std::memory_order_relaxed)) {
    }
  }
  // The least age that so many percent of them do not exceed; 0 if there are none.
  uint64_t Percentile(uint64_t percent) const {
    std::array<uint64_t, kAgeMax + 1> counts;
    uint64_t all = 0;
    for (size_t age = 0; age < counts.size(); ++age) all += counts[age] = counts_[age].load(std::memory_order_relaxed);
    uint64_t seen = 0;
    for (size_t age = 0; age < counts.size(); ++age) {
      if (100 * (seen += counts[age]) >= percent * all) return age;
    }
    return kAgeMax;
  }
  uint64_t max() const { return max_.load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<uint64_t>, kAgeMax + 1> counts_{};
  std::atomic<uint64_t> max_{0};
};

}  // namespace lodestone::server
