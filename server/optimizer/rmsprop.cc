#include "server/optimizer/rmsprop.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optimizer/rmsprop.cc"
#include "hwy/foreach_target.h"
#include "server/optimizer/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone::server {
namespace HWY_NAMESPACE {

struct RmsPropRule {
  static constexpr uint32_t kVectors = 1;
  float rate;
  float rho;
  float rho_rest;  // 1 - rho
  float epsilon;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V g, V& w, V& s) const {
    s = hn::Add(hn::Mul(hn::Set(d, rho), s), hn::Mul(hn::Mul(hn::Set(d, rho_rest), g), g));
    s = AtMostFinite(d, s);
    w = hn::Sub(w, hn::Div(hn::Mul(hn::Set(d, rate), g), hn::Add(hn::Sqrt(s), hn::Set(d, epsilon))));
  }
};

void RmsPropUpdate(const UpdateWork& work, const GradientTransform& transform, float rate, float rho, float epsilon) {
  UpdateAll(work, transform, [&](const Arrays&) { return RmsPropRule{rate, rho, 1.0f - rho, epsilon}; });
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone::server
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace lodestone::server {
namespace {

HWY_EXPORT(RmsPropUpdate);

class RmsProp final : public Optimizer {
 public:
  RmsProp(float rho, float epsilon) : rho_(rho), epsilon_(epsilon) {}

  const char* name() const override { return "rmsprop"; }
  StateLayout state_layout() const override { return {.vectors = 1}; }
  void InitializeState(float* state, size_t n) const override { std::fill_n(state, n, 0.0f); }
  void Run(const Step& step, const UpdateWork& work) const override {
    HWY_DYNAMIC_DISPATCH(RmsPropUpdate)(work, GradientTransform(step), step.learning_rate, rho_, epsilon_);
  }

 private:
  const float rho_;
  const float epsilon_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateRmsProp(const v1::RmsProp& config) {
  if (!(config.rho() >= 0 && config.rho() < 1)) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer.rmsprop.rho must be in [0, 1), is ", config.rho()));
  }
  if (!(config.epsilon() > 0 && std::isfinite(config.epsilon()))) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer.rmsprop.epsilon must be above 0, is ", config.epsilon()));
  }
  return std::make_unique<const RmsProp>(config.rho(), config.epsilon());
}

}  // namespace lodestone::server
#endif  // HWY_ONCE
