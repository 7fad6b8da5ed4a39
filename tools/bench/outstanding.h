// Keeps a number of asynchronous operations outstanding and measures each.
//
// Run blocks the calling thread, which alone issues the operations; they end on any thread.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/bench/peer.h"

namespace lodestone::bench {

// Starts step `step` of operation `number` and calls `done` once, on any thread, when it has ended.
using Done = std::function<void(absl::Status)>;
using StartStep = std::function<void(uint64_t number, uint32_t step, Done done)>;

// Operations of `steps` steps, one after the other, each started on the calling thread; order.depth operations at a
// time, counted as Order says. The first error ends it once nothing is under way.
absl::StatusOr<Outcome> RunOutstanding(const Order& order, uint32_t steps, const StartStep& start);

}  // namespace lodestone::bench
