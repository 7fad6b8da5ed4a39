#include "server/optimizer/adam_core.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "server/optimizer/power.h"

namespace lodestone {
namespace {

constexpr float kCountMax = 16777216.0f;  // 2^24

}  // namespace

absl::Status CheckAdam(const char* method, const AdamParameters& p) {
  if (!(p.beta1 >= 0 && p.beta1 < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer.", method, ".beta1 must be in [0, 1), is ", p.beta1));
  }
  if (!(p.beta2 >= 0 && p.beta2 < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer.", method, ".beta2 must be in [0, 1), is ", p.beta2));
  }
  if (!(p.epsilon > 0 && std::isfinite(p.epsilon))) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer.", method, ".epsilon must be above 0, is ", p.epsilon));
  }
  return absl::OkStatus();
}

float NextAdamCount(float count) { return std::min(count + 1.0f, kCountMax); }

AdamStep MakeAdamStep(const AdamParameters& p, float learning_rate, float count) {
  const uint32_t exponent = static_cast<uint32_t>(count);
  return {.beta1 = p.beta1,
          .beta1_rest = 1.0f - p.beta1,
          .beta2 = p.beta2,
          .beta2_rest = 1.0f - p.beta2,
          .rate = static_cast<float>(learning_rate / (1.0 - PowerOf(p.beta1, exponent))),
          .root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - PowerOf(p.beta2, exponent))),
          .epsilon = p.epsilon,
          .keep = 1.0f};
}

}  // namespace lodestone
