#include "server/optimizer/nesterov.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optimizer/nesterov.cc"
#include "hwy/foreach_target.h"
#include "server/optimizer/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone {
namespace HWY_NAMESPACE {

struct NesterovRule {
  static constexpr int kVectors = 1;
  float rate;
  float momentum;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V g, V& w, V& m) const {
    m = hn::Add(hn::Mul(hn::Set(d, momentum), m), g);
    const V ahead = hn::Add(g, hn::Mul(hn::Set(d, momentum), m));
    w = hn::Sub(w, hn::Mul(hn::Set(d, rate), ahead));
  }
};

void NesterovUpdate(const UpdateArrays& arrays, const GradientTransform& transform, float rate, float momentum) {
  UpdateAll(arrays, transform, NesterovRule{rate, momentum});
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lodestone {
namespace {

HWY_EXPORT(NesterovUpdate);

class Nesterov final : public Optimizer {
 public:
  explicit Nesterov(float momentum) : momentum_(momentum) {}

  const char* name() const override { return "nesterov"; }
  StateLayout state_layout() const override { return {.vectors = 1}; }
  void InitializeState(float* state, size_t n) const override { std::fill_n(state, n, 0.0f); }
  void Update(const Step& step, size_t n, const uint8_t* gradient, const float* values_in, const float* state_in,
              float* values_out, float* state_out) const override {
    const UpdateArrays arrays{n, gradient, values_in, state_in, values_out, state_out};
    HWY_DYNAMIC_DISPATCH(NesterovUpdate)(arrays, GradientTransform(step), step.learning_rate, momentum_);
  }

 private:
  const float momentum_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateNesterov(const v1::Nesterov& config) {
  if (!(config.momentum() >= 0 && config.momentum() <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer.nesterov.momentum must be in [0, 1], is ", config.momentum()));
  }
  return std::make_unique<const Nesterov>(config.momentum());
}

}  // namespace lodestone
#endif  // HWY_ONCE
