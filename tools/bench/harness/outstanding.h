// A closed-loop load: a fixed number of asynchronous operations in flight, each measured.
//
// An operation is started where the one before has ended, as an application does that acts on what it is told: by the
// thread that tells. (So does the limit's client. To wake another thread for it would cost more than a small operation
// does, and it would be that which is measured.)
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/bench/harness/peer.h"

namespace lodestone::bench {

// Starts step `step` of operation `number` and calls `done` once, on any thread, when it has ended.
using Done = std::function<void(absl::Status)>;
using StartStep = std::function<void(uint64_t number, uint32_t step, Done done)>;

// Operations of `steps` steps, one after the other; order.depth operations at a time, counted as Order says. Starts one
// step at a time, the first ones on the calling thread, which then waits, the others on the threads on which steps end.
// The first error ends it once nothing is under way.
absl::StatusOr<Outcome> RunOutstanding(const Order& order, uint32_t steps, const StartStep& start);

}  // namespace lodestone::bench
