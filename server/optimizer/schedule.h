// The schedule of the learning rate over steps. Pure functions.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "proto/table.pb.h"

namespace lodestone::server {

// INVALID_ARGUMENT, naming the field, if the schedule makes no sense.
absl::Status CheckSchedule(const v1::Schedule& schedule);

// The learning rate at `step` (from 0): the configured one times the schedule's factor. During warm-up the factor is
// step / warmup_steps: 0 at step 0, 1 at step `warmup_steps`, where the decay begins.
float LearningRateAt(const v1::Optimizer& config, uint64_t step);

}  // namespace lodestone::server
