// When subscribers are due by time: all of one period at the same moments, so that they share what is collected, and a
// server with many subscribers wakes up as often as one with a few.
//
// Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace lodestone::server {

class BroadcastSchedule {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Period = std::chrono::milliseconds;

  // Adds a subscriber: due within `period` from `now` on, and then each period. REQUIRES: period > 0.
  void Add(uint64_t subscriber, Period period, Time now);
  void Remove(uint64_t subscriber, Period period);

  // The subscribers that are due at `now`. Keeps the rhythm; moments that were missed are skipped.
  std::vector<uint64_t> TakeDue(Time now);
  // When some are due next; nullopt if none ever is.
  std::optional<Time> next() const;

 private:
  struct Group {
    Time next;
    absl::flat_hash_set<uint64_t> subscribers;
  };
  std::map<Period, Group> groups_;  // None is empty.
};

}  // namespace lodestone::server
