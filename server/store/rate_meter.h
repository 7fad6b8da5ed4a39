// The rate of a counter over the last few samples of it.
//
// Thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "common/base/mutex.h"

namespace lodestone::server {

class RateMeter {
 public:
  // The counter is at `count`. Called about once a second.
  void Sample(int64_t now_ms, uint64_t count) {
    MutexLock lock(&mu_);
    samples_.push_back({now_ms, count});
    if (samples_.size() > kSamples) samples_.pop_front();
  }
  // 0 before there are two samples.
  double PerSecond() const {
    MutexLock lock(&mu_);
    if (samples_.size() < 2) return 0;
    const Point& first = samples_.front();
    const Point& last = samples_.back();
    const double seconds = static_cast<double>(std::max<int64_t>(1, last.now_ms - first.now_ms)) / 1000;
    return static_cast<double>(last.count - first.count) / seconds;
  }

 private:
  static constexpr size_t kSamples = 5;
  struct Point {
    int64_t now_ms = 0;
    uint64_t count = 0;
  };

  mutable Mutex mu_;
  std::deque<Point> samples_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::server
