// What Adam and AdamW share: bias correction by a count that stands behind the two state vectors. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"

namespace lodestone {

// Adam's hyperparameters.
struct AdamParameters {
  float beta1 = 0;
  float beta2 = 0;
  float epsilon = 0;
};

// INVALID_ARGUMENT, naming the field of optimizer.`method`, if they make no sense.
absl::Status CheckAdam(const char* method, const AdamParameters& parameters);

// Counts exactly up to 2^24, where it stays: no beta below 1 in float has a power left there that would matter.
float NextAdamCount(float count);

// The constants of one step.
struct AdamStep {
  float beta1 = 0;
  float beta1_rest = 0;  // 1 - beta1
  float beta2 = 0;
  float beta2_rest = 0;  // 1 - beta2
  float rate = 0;        // learning rate / (1 - beta1 ^ count)
  float root_scale = 0;  // 1 / sqrt(1 - beta2 ^ count)
  float epsilon = 0;
  float keep = 1;  // What decoupled weight decay leaves of the value.
};

// Step number `count`, from 1.
AdamStep MakeAdamStep(const AdamParameters& parameters, float learning_rate, float count);

}  // namespace lodestone
