// The stages of a training step, and how long a worker has spent in each.
//
// Thread safety: plain values.
#pragma once

#include <array>
#include <cstddef>

namespace lodestone::worker {

// What a step's time goes by. The rest of it is bookkeeping.
enum class Stage {
  kInput,  // waits for samples to be read
  kPull,   // waits for the rows of their keys, takes over what broadcasts brought, pulls dense values if that is little
  kCompute,  // computes loss and gradients; on a device, what remains of that after the push of the step before
  kPush,     // hands the gradients to the connections, which waits while too many pushes are unacknowledged
};
inline constexpr size_t kStages = 4;
// Their names in files and metrics, in order.
inline constexpr std::array<const char*, kStages> kStageNames = {"input", "pull", "compute", "push"};

// Seconds by stage.
using StageSeconds = std::array<double, kStages>;

}  // namespace lodestone::worker
