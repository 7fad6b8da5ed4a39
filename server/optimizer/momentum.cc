#include "server/optimizer/momentum.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optimizer/momentum.cc"
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
#include "common/base/status.h"
#include "server/optimizer/update.h"

namespace lodestone::server {
namespace {

HWY_EXPORT(MomentumUpdate);

// Heavy-ball and Nesterov's momentum, by one vector of state.
class Momentum final : public Optimizer {
 public:
  // `ahead`: steps along the gradient that the momentum will have grown by (Nesterov).
  Momentum(float momentum, bool ahead) : momentum_(momentum), ahead_(ahead) {}

  const char* name() const override { return NameOf(ahead_); }
  StateLayout state_layout() const override { return {.vectors = 1}; }
  void InitializeState(float* state, size_t n) const override { std::fill_n(state, state_layout().FloatsFor(n), 0.0f); }

  static const char* NameOf(bool ahead) { return ahead ? "nesterov" : "momentum"; }

 protected:
  void Run(const Step& step, const UpdateWork& work) const override {
    HWY_DYNAMIC_DISPATCH(MomentumUpdate)(work, GradientTransform(step), step.learning_rate, momentum_, ahead_);
  }

 private:
  const float momentum_;
  const bool ahead_;
};

absl::StatusOr<std::unique_ptr<const Optimizer>> Create(float momentum, bool ahead) {
  if (momentum >= 0 && momentum <= 1) return std::make_unique<const Momentum>(momentum, ahead);
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer.", Momentum::NameOf(ahead), ".momentum must be in [0, 1], is ", momentum));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateMomentum(const v1::Momentum& config) {
  return Create(config.momentum(), /*ahead=*/false);
}

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateNesterov(const v1::Nesterov& config) {
  return Create(config.momentum(), /*ahead=*/true);
}

}  // namespace lodestone::server
#endif  // HWY_ONCE
