// The history of training since the start: a point for each stretch of time, at first of limits::kHistoryPeriodMs. When
// there are more than limits::kHistoryPointsMax, every two become one, and stretches twice as long from then on.
//
// While no worker is at work nothing is added, so that an idle cluster keeps the history of its last run.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/limits.h"
#include "common/base/time_source.h"
#include "proto/admin.pb.h"

namespace lodestone::server {

// A cluster as it is at one time.
struct Moment {
  v1::HistoryPoint point;  // Without time.
  bool trains = false;     // Some worker does, so that its loss, staleness and metric mean something.
};

class History {
 public:
  // `time`: milliseconds since 1970; must outlive this.
  explicit History(const TimeSource* time) : time_(time), added_ms_(time->NowMs()) {}

  // When the next point is to be added, on the time source. `works`: some worker is at work. nullopt: none is, as long
  // as that stays so.
  std::optional<int64_t> NextMs(bool works) const;

  // Adds the point of the stretch that ends now.
  void Add(const Moment& moment);

  v1::HistoryResponse Tell() const;

 private:
  struct Stretch {
    v1::HistoryPoint point;
    int64_t ms = 0;          // How long.
    int64_t trained_ms = 0;  // How long of it some worker trained; its loss and staleness are of that.
    int64_t metric_ms = 0;   // How long of that the metric was reported; 0: it has none.
  };
  static Stretch Join(const Stretch& first, const Stretch& second);

  const TimeSource* const time_;
  int64_t period_ms_ = limits::kHistoryPeriodMs;
  int64_t added_ms_;      // When the last point was, or the start.
  bool was_idle_ = true;  // And no worker was at work.
  std::vector<Stretch> stretches_;
};

}  // namespace lodestone::server
