// When a worker validates: the marks of train.validate that its own training has passed.
//
// Thread safety: a plain value.
#pragma once

#include <cmath>
#include <cstdint>

#include "proto/config.pb.h"

namespace lodestone::worker {

class ValidationSchedule {
 public:
  // `samples`: of the training data; where partitions are trained, of the worker's.
  ValidationSchedule(const v1::ValidateConfig& config, uint64_t samples) : samples_(static_cast<double>(samples)) {
    if (config.every_case() == v1::ValidateConfig::kEverySteps) every_steps_ = config.every_steps();
    if (config.every_case() == v1::ValidateConfig::kEverySeconds) every_seconds_ = config.every_seconds();
    if (config.every_case() == v1::ValidateConfig::kEveryEpochs) every_epochs_ = config.every_epochs();
  }

  // Marks passed after so many steps, seconds since the first of them, and samples of all epochs.
  uint64_t Passed(uint64_t steps, double seconds, uint64_t position) const {
    if (every_steps_ > 0) return steps / every_steps_;
    if (every_seconds_ > 0) return static_cast<uint64_t>(seconds / every_seconds_);
    // A mark at a sum of steps' samples is passed with it, whatever the quotient is rounded to.
    constexpr double kRounding = 1e-9;
    if (samples_ == 0) return 0;
    return static_cast<uint64_t>(std::floor(static_cast<double>(position) / samples_ / every_epochs_ + kRounding));
  }

 private:
  const double samples_;
  uint64_t every_steps_ = 0;
  double every_seconds_ = 0;
  double every_epochs_ = 1;  // Unless one of the others is set.
};

}  // namespace lodestone::worker
