// What a saved state of the coordinator must be before it is taken up again.
//
// Thread safety: the functions are pure.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/coordinator_state.pb.h"
#include "server/coordinator/cluster_options.h"

namespace lodestone::server {

// CoordinatorState.format.
inline constexpr uint32_t kStateFormat = 1;

// FAILED_PRECONDITION if `state` is of another cluster than that of `options`, DATA_LOSS if it contradicts itself.
absl::Status CheckState(const v1::CoordinatorState& state, const ClusterOptions& options);

// What of a state a checkpoint keeps for a coordinator that finds nothing else: numbers that must not go back, and the
// run. Who owned what when the checkpoint was written does not matter any more.
v1::CoordinatorState KeptOf(const v1::CoordinatorState& state);

// Whether every worker of the state's run has joined and shut down cleanly.
bool RunIsOver(const v1::CoordinatorState& state);

}  // namespace lodestone::server
