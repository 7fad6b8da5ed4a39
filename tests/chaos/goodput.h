// Goodput under faults: the rate of acknowledged pushes in periods with a fault, beside that in the periods around
// them without one, all of one length and in turns, so that what drifts drifts for both.
//
// Thread safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

namespace lodestone::chaos {

struct GoodputPeriod {
  double seconds = 0;
  uint64_t pushes = 0;  // Acknowledged in it.
  // With a fault, which came at its begin: until each shard that was met had acknowledged again.
  double recovery_seconds = 0;
  uint64_t recovery_pushes = 0;

  double rate() const { return seconds > 0 ? static_cast<double>(pushes) / seconds : 0; }
};

// What a fault cost, as shares of what its period would have had at the rate of its two neighbours.
struct GoodputShares {
  double goodput = 0;
  double lost_in_recovery = 0;
  double lost_after = 0;  // To pushes sent again, logs read again, copies caught up; negative: more than around it.
};

// The shares of `with_fault`, between `before` and `after`. REQUIRES: none of the three is empty.
GoodputShares ComputeShares(const GoodputPeriod& before, const GoodputPeriod& with_fault, const GoodputPeriod& after);

// Shares of each period with a fault. `periods` are those without one and those with one, in turns; the first and the
// last are without. A fault around which nothing was acknowledged is left out.
std::vector<GoodputShares> ComputeShares(const std::vector<GoodputPeriod>& periods);

}  // namespace lodestone::chaos
