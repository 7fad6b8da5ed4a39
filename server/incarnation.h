// Incarnations as times: a coordinator starts counting at the microseconds of its wall clock, so that the numbers it
// gives grow over its restarts too. As nobody joins every microsecond, they stay behind that clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "common/types.h"

namespace lodestone {

// The first incarnation that a coordinator gives if it starts at `now`; one started before has not come as far.
inline Incarnation FirstIncarnation(std::chrono::system_clock::time_point now) {
  const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
  return static_cast<Incarnation>(std::max<int64_t>(1, us));
}

}  // namespace lodestone
