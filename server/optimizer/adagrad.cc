#include "server/optimizer/adagrad.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optimizer/adagrad.cc"
#include "hwy/foreach_target.h"
#include "server/optimizer/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone::server {
namespace HWY_NAMESPACE {

struct AdagradRule {
  static constexpr uint32_t kVectors = 1;
  float rate;
  float epsilon;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V g, V& w, V& s) const {
    s = AtMostFinite(d, hn::Add(s, hn::Mul(g, g)));
    w = hn::Sub(w, hn::Div(hn::Mul(hn::Set(d, rate), g), hn::Add(hn::Sqrt(s), hn::Set(d, epsilon))));
  }
};

void AdagradUpdate(const UpdateWork& work, const GradientTransform& transform, float rate, float epsilon) {
  UpdateAll(work, transform, [&](const Arrays&) { return AdagradRule{rate, epsilon}; });
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

HWY_EXPORT(AdagradUpdate);

class Adagrad final : public Optimizer {
 public:
  Adagrad(float initial_accumulator, float epsilon, const char* name)
      : initial_accumulator_(initial_accumulator), epsilon_(epsilon), name_(name) {}

  const char* name() const override { return name_; }
  StateLayout state_layout() const override { return {.vectors = 1}; }
  void InitializeState(float* state, size_t n) const override { std::fill_n(state, n, initial_accumulator_); }
  void Run(const Step& step, const UpdateWork& work) const override {
    HWY_DYNAMIC_DISPATCH(AdagradUpdate)(work, GradientTransform(step), step.learning_rate, epsilon_);
  }

 private:
  const float initial_accumulator_;
  const float epsilon_;
  const char* const name_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateAdagrad(const v1::Adagrad& config, const char* name) {
  const float initial = config.initial_accumulator();
  const float epsilon = config.epsilon();
  if (!(initial >= 0 && std::isfinite(initial))) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer.", name, ".initial_accumulator must not be negative, is ", initial));
  }
  if (!(epsilon >= 0 && std::isfinite(epsilon))) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer.", name, ".epsilon must not be negative, is ", epsilon));
  }
  if (initial == 0 && epsilon == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer.", name, ".epsilon and initial_accumulator must not both be 0"));
  }
  return std::make_unique<const Adagrad>(initial, epsilon, name);
}

}  // namespace lodestone::server
#endif  // HWY_ONCE
