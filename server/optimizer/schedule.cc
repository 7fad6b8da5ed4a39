#include "server/optimizer/schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/optimizer/power.h"

namespace lodestone::server {
namespace {

absl::Status CheckSteps(const char* field, uint64_t steps) {
  if (steps >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("optimizer.schedule.", field, " must be at least 1"));
}

absl::Status CheckFactor(const char* field, float factor) {
  if (factor >= 0 && factor <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("optimizer.schedule.", field, " must be in [0, 1], is ", factor));
}

double CosineFactor(const v1::Schedule::Cosine& cosine, uint64_t step) {
  if (step >= cosine.steps()) return cosine.floor();
  const double progress = static_cast<double>(step) / static_cast<double>(cosine.steps());
  return cosine.floor() + (1.0 - cosine.floor()) * 0.5 * (1.0 + std::cos(3.141592653589793 * progress));
}

double DecayFactor(const v1::Schedule& schedule, uint64_t step) {
  switch (schedule.decay_case()) {
    case v1::Schedule::kCosine:
      return CosineFactor(schedule.cosine(), step);
    case v1::Schedule::kInverseSqrt: {
      const double steps = static_cast<double>(schedule.inverse_sqrt().steps());
      return std::sqrt(steps / (steps + static_cast<double>(step)));
    }
    case v1::Schedule::kStep:
      return PowerOf(schedule.step().factor(), step / std::max<uint64_t>(1, schedule.step().every_steps()));
    case v1::Schedule::DECAY_NOT_SET:
      break;
  }
  return 1;
}

}  // namespace

absl::Status CheckSchedule(const v1::Schedule& schedule) {
  absl::Status status;
  switch (schedule.decay_case()) {
    case v1::Schedule::kCosine:
      status = CheckSteps("cosine.steps", schedule.cosine().steps());
      status.Update(CheckFactor("cosine.floor", schedule.cosine().floor()));
      break;
    case v1::Schedule::kInverseSqrt:
      status = CheckSteps("inverse_sqrt.steps", schedule.inverse_sqrt().steps());
      break;
    case v1::Schedule::kStep:
      status = CheckSteps("step.every_steps", schedule.step().every_steps());
      status.Update(CheckFactor("step.factor", schedule.step().factor()));
      break;
    case v1::Schedule::DECAY_NOT_SET:
      break;
  }
  return status;
}

float LearningRateAt(const v1::Optimizer& config, uint64_t step) {
  if (!config.has_schedule()) return config.learning_rate();
  const v1::Schedule& schedule = config.schedule();
  const uint64_t warmup = schedule.warmup_steps();
  const double factor =
      step < warmup ? static_cast<double>(step) / static_cast<double>(warmup) : DecayFactor(schedule, step - warmup);
  return static_cast<float>(config.learning_rate() * factor);
}

}  // namespace lodestone::server
