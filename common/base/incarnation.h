// Incarnations as times: each is at least the microseconds of the coordinator's wall clock (as it goes on from its
// start), and greater than those before it, over restarts too. As nobody joins every microsecond, they stay with that
// clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "common/base/types.h"

namespace lodestone {

// The first incarnation that a coordinator gives if it starts at `now`; no other has given a greater one by then.
inline Incarnation FirstIncarnation(std::chrono::system_clock::time_point now) {
  const int64_t us = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
  return static_cast<Incarnation>(std::max<int64_t>(1, us));
}

}  // namespace lodestone
