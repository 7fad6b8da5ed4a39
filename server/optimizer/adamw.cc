#include "server/optimizer/adamw.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optimizer/adamw.cc"
#include "hwy/foreach_target.h"
#include "server/optimizer/adam-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone {
namespace HWY_NAMESPACE {

void AdamWUpdate(const UpdateArrays& arrays, const GradientTransform& transform, const AdamStep& step) {
  UpdateAll(arrays, transform, AdamRule{step});
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>

#include "common/status.h"

namespace lodestone {
namespace {

HWY_EXPORT(AdamWUpdate);

class AdamW final : public Optimizer {
 public:
  explicit AdamW(const AdamParameters& parameters) : parameters_(parameters) {}

  const char* name() const override { return "adamw"; }
  StateLayout state_layout() const override { return {.vectors = 2, .scalars = 1}; }
  void InitializeState(float* state, size_t n) const override { std::fill_n(state, 2 * n + 1, 0.0f); }
  void Update(const Step& step, size_t n, const uint8_t* gradient, const float* values_in, const float* state_in,
              float* values_out, float* state_out) const override {
    const UpdateArrays arrays{n, gradient, values_in, state_in, values_out, state_out};
    const float count = NextAdamCount(state_in[2 * n]);
    AdamStep adam = MakeAdamStep(parameters_, step.learning_rate, count);
    adam.keep = 1.0f - step.learning_rate * step.weight_decay;
    HWY_DYNAMIC_DISPATCH(AdamWUpdate)(arrays, GradientTransform(step, /*decoupled=*/true), adam);
    state_out[2 * n] = count;
  }

 private:
  const AdamParameters parameters_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateAdamW(const v1::AdamW& config) {
  const AdamParameters parameters{config.beta1(), config.beta2(), config.epsilon()};
  LODESTONE_RETURN_IF_ERROR(CheckAdam("adamw", parameters));
  return std::make_unique<const AdamW>(parameters);
}

}  // namespace lodestone
#endif  // HWY_ONCE
