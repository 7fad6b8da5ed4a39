// How far the workers have come that others may wait for: enough to answer any number of askers.
//
// Thread safety: plain values.
#pragma once

#include <limits>

#include "common/base/types.h"

namespace lodestone::server {

struct LowestClocks {
  Incarnation holder = 0;
  Clock lowest = std::numeric_limits<Clock>::max();  // The holder's.
  Clock lowest_of_others = std::numeric_limits<Clock>::max();

  // Nobody but `asker` itself is behind `clock`.
  bool Reached(Incarnation asker, Clock clock) const { return (asker == holder ? lowest_of_others : lowest) >= clock; }
};

}  // namespace lodestone::server
