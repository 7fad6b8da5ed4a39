// The pace of a process's requests for a shard map that is newer than its own: quick at first, because an owner that
// gives a shard up is followed by another within milliseconds, then slower and slower, however many calls fail, and
// with pauses also if answers take long.
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lodestone {

class RoutePace {
 public:
  static constexpr int64_t kFirstPauseMs = 5;

  // `pause_ms_max`: between two requests; after twice as long without one they are quick again.
  explicit RoutePace(int64_t pause_ms_max) : pause_ms_max_(pause_ms_max) {}

  // A request is made.
  void Begin(int64_t now_ms) {
    if (now_ms - ended_ms_ > 2 * pause_ms_max_) pause_ms_ = FirstMs();
  }
  // It has brought a newer map, or has not: there is none, or the coordinator is away.
  void End(int64_t now_ms, bool newer) {
    pause_ms_ = newer ? FirstMs() : std::min(2 * pause_ms_, pause_ms_max_);
    ended_ms_ = now_ms;
  }

  // When the next may be made.
  int64_t next_ms() const { return ended_ms_ + pause_ms_; }

 private:
  int64_t FirstMs() const { return std::min(kFirstPauseMs, pause_ms_max_); }

  const int64_t pause_ms_max_;
  int64_t ended_ms_ = INT64_MIN / 2;  // Long ago.
  int64_t pause_ms_ = FirstMs();
};

}  // namespace lodestone
