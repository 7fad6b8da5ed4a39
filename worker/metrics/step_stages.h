// The stages of a training step, the time that a worker has spent in each, and a step's counts.
//
// Thread safety: plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

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

// The counts after a step.
struct StepCounts {
  uint64_t clock = 0;
  uint64_t samples = 0;       // Of all steps.
  uint64_t batch = 0;         // Of this step.
  double loss_sum = 0;        // Of this step, weighted,
  double weight = 0;          // and its samples' weights.
  uint64_t acknowledged = 0;  // Pushes so far.
  // Sums over those, of the table with the greatest delay each: updates between reading and application, by others and
  // by all.
  double staleness_sum = 0;
  double delay_sum = 0;
  StageSeconds stages{};  // Of all steps.
};

}  // namespace lodestone::worker
