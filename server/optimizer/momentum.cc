#include "server/optimizer/momentum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optimizer/momentum.cc"
#include "hwy/foreach_target.h"
#include "server/optimizer/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone {
namespace HWY_NAMESPACE {

struct MomentumRule {
  static constexpr int kVectors = 1;
  float rate;
  float momentum;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V g, V& w, V& m) const {
    m = hn::Add(hn::Mul(hn::Set(d, momentum), m), g);
    w = hn::Sub(w, hn::Mul(hn::Set(d, rate), m));
  }
};

void MomentumUpdate(const UpdateArrays& arrays, const GradientTransform& transform, float rate, float momentum) {
  UpdateAll(arrays, transform, MomentumRule{rate, momentum});
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lodestone {
namespace {

HWY_EXPORT(MomentumUpdate);

class Momentum final : public Optimizer {
 public:
  explicit Momentum(float momentum) : momentum_(momentum) {}

  const char* name() const override { return "momentum"; }
  StateLayout state_layout() const override { return {.vectors = 1}; }
  void InitializeState(float* state, size_t n) const override { std::fill_n(state, n, 0.0f); }
  void Update(const Step& step, size_t n, const uint8_t* gradient, const float* values_in, const float* state_in,
              float* values_out, float* state_out) const override {
    const UpdateArrays arrays{n, gradient, values_in, state_in, values_out, state_out};
    HWY_DYNAMIC_DISPATCH(MomentumUpdate)(arrays, GradientTransform(step), step.learning_rate, momentum_);
  }

 private:
  const float momentum_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateMomentum(const v1::Momentum& config) {
  if (!(config.momentum() >= 0 && config.momentum() <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer.momentum.momentum must be in [0, 1], is ", config.momentum()));
  }
  return std::make_unique<const Momentum>(config.momentum());
}

}  // namespace lodestone
#endif  // HWY_ONCE
