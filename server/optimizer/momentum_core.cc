#include "server/optimizer/momentum_core.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optimizer/momentum_core.cc"
#include "hwy/foreach_target.h"
#include "server/optimizer/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone::server {
namespace HWY_NAMESPACE {

// m = momentum m + g; w = w - rate m, or with kAhead w - rate (g + momentum m).
template <bool kAhead>
struct MomentumRule {
  static constexpr uint32_t kVectors = 1;
  float rate;
  float momentum;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V g, V& w, V& m) const {
    m = hn::Add(hn::Mul(hn::Set(d, momentum), m), g);
    const V direction = kAhead ? hn::Add(g, hn::Mul(hn::Set(d, momentum), m)) : m;
    w = hn::Sub(w, hn::Mul(hn::Set(d, rate), direction));
  }
};

void MomentumUpdate(const UpdateWork& work, const GradientTransform& transform, float rate, float momentum,
                    bool ahead) {
  if (ahead) {
    UpdateAll(work, transform, [&](const Arrays&) { return MomentumRule<true>{rate, momentum}; });
  } else {
    UpdateAll(work, transform, [&](const Arrays&) { return MomentumRule<false>{rate, momentum}; });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone::server
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lodestone::server {
namespace {

HWY_EXPORT(MomentumUpdate);

}  // namespace

void MomentumCore::InitializeState(float* state, size_t n) const {
  std::fill_n(state, state_layout().FloatsFor(n), 0.0f);
}

void MomentumCore::Run(const Step& step, const UpdateWork& work) const {
  HWY_DYNAMIC_DISPATCH(MomentumUpdate)(work, GradientTransform(step), step.learning_rate, momentum_, ahead_);
}

absl::Status CheckMomentum(const char* method, float momentum) {
  if (momentum >= 0 && momentum <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("optimizer.", method, ".momentum must be in [0, 1], is ", momentum));
}

}  // namespace lodestone::server
#endif  // HWY_ONCE
