// The clocks of the live workers: how far they have come that others may wait for.
//
// Thread safety: the functions only read the table.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "server/coordinator/member_table.h"

namespace lodestone::server {

// Enough to answer any number of askers: the lowest clock, which `holder` has, and that of all but the holder; and the
// newest likewise.
struct LowestClocks {
  static constexpr Clock kNone = std::numeric_limits<Clock>::max();

  Incarnation holder = 0;
  Clock lowest = kNone;
  Clock lowest_of_others = kNone;
  Incarnation newest_holder = 0;
  Clock newest = 0;
  Clock newest_of_others = 0;

  // No worker but `asker` itself is behind `clock`.
  bool Reached(Incarnation asker, Clock clock) const { return (asker == holder ? lowest_of_others : lowest) >= clock; }
};

// How far the live workers that still take steps have come. While a place for a worker has never been held, that is
// nowhere. With `training`, of those only that have begun to train.
LowestClocks LowestClocksOf(const MemberTable& members, bool training = false);

// UNAVAILABLE if `asker`, which asks how far the others have come in order to begin there, is to ask again: what
// another live worker has reached is not known before it is heard of.
absl::Status CheckNewestKnown(const MemberTable& members, Incarnation asker);

// The live workers other than `asker` that are behind `clock`, and those that have never joined, one line each; a last
// line counts those beyond 16.
std::vector<std::string> WorkersBehind(const MemberTable& members, Incarnation asker, Clock clock,
                                       bool training = false);

// The same workers, and the clock that each is to reach, at most 16.
std::vector<v1::WaitTarget> ClockTargets(const MemberTable& members, Incarnation asker, Clock clock,
                                         bool training = false);

// The workers other than `asker` that take no further step and lack samples of what they were to train on, because they
// died, left or were stopped (but not those that training ended early for): who, how far they came and when they were
// last heard of, one line each; a last line counts those beyond 16.
std::vector<std::string> UntrainedWorkers(const MemberTable& members, Incarnation asker);

}  // namespace lodestone::server
