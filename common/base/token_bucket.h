// A token bucket: tokens that come at a steady rate, up to a burst, and are taken by what is limited.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace lodestone {

// May go into debt: what takes more than is there pays by waiting.
class TokenBucket {
 public:
  // `rate`: tokens per second, 0: unlimited. `burst`: how many it holds, and begins with.
  TokenBucket(double rate, double burst, int64_t now_ms)
      : rate_(rate), burst_(burst), level_(burst), filled_ms_(now_ms) {}

  // Tokens that are there; below 0: debt.
  double Level(int64_t now_ms) {
    level_ = std::min(burst_, level_ + rate_ * static_cast<double>(now_ms - filled_ms_) / 1000);
    filled_ms_ = now_ms;
    return level_;
  }
  // Milliseconds until the debt is repaid; 0 if there is none.
  int64_t DebtMs(int64_t now_ms) {
    if (rate_ == 0) return 0;
    return Level(now_ms) >= 0 ? 0 : static_cast<int64_t>(std::ceil(-level_ * 1000 / rate_));
  }
  void Take(double tokens) { level_ -= tokens; }

 private:
  double rate_;
  double burst_;
  double level_;
  int64_t filled_ms_;
};

}  // namespace lodestone
