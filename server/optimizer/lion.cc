#include "server/optimizer/lion.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optimizer/lion.cc"
#include "hwy/foreach_target.h"
#include "server/optimizer/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone::server {
namespace HWY_NAMESPACE {

// c = beta1 m + (1 - beta1) g; w = keep w - rate sign(c), with sign(0) = 0; m = beta2 m + (1 - beta2) g.
struct LionRule {
  static constexpr uint32_t kVectors = 1;
  float rate;
  float keep;  // 1 - rate * weight decay.
  float beta1;
  float beta1_rest;  // 1 - beta1
  float beta2;
  float beta2_rest;  // 1 - beta2

  template <class D, class V>
  HWY_INLINE void operator()(D d, V g, V& w, V& m) const {
    const V c = hn::Add(hn::Mul(hn::Set(d, beta1), m), hn::Mul(hn::Set(d, beta1_rest), g));
    const V forward = hn::IfThenElseZero(hn::Gt(c, hn::Zero(d)), hn::Set(d, rate));
    const V step = hn::IfThenElse(hn::Lt(c, hn::Zero(d)), hn::Set(d, -rate), forward);
    w = hn::Sub(hn::Mul(hn::Set(d, keep), w), step);
    m = hn::Add(hn::Mul(hn::Set(d, beta2), m), hn::Mul(hn::Set(d, beta2_rest), g));
  }
};

void LionUpdate(const UpdateWork& work, const GradientTransform& transform, float rate, float keep, float beta1,
                float beta2) {
  UpdateAll(work, transform,
            [&](const Arrays&) { return LionRule{rate, keep, beta1, 1.0f - beta1, beta2, 1.0f - beta2}; });
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone::server
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::server {
namespace {

HWY_EXPORT(LionUpdate);

class Lion final : public Optimizer {
 public:
  Lion(float beta1, float beta2) : beta1_(beta1), beta2_(beta2) {}

  const char* name() const override { return "lion"; }
  StateLayout state_layout() const override { return {.vectors = 1}; }
  void InitializeState(float* state, size_t n) const override { std::fill_n(state, n, 0.0f); }
  void Run(const Step& step, const UpdateWork& work) const override {
    HWY_DYNAMIC_DISPATCH(LionUpdate)
    (work, GradientTransform(step, /*decoupled=*/true), step.learning_rate,
     1.0f - step.learning_rate * step.weight_decay, beta1_, beta2_);
  }

 private:
  const float beta1_;
  const float beta2_;
};

absl::Status CheckBeta(const char* field, float beta) {
  if (beta >= 0 && beta < 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("optimizer.lion.", field, " must be in [0, 1), is ", beta));
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateLion(const v1::Lion& config) {
  LODESTONE_RETURN_IF_ERROR(CheckBeta("beta1", config.beta1()));
  LODESTONE_RETURN_IF_ERROR(CheckBeta("beta2", config.beta2()));
  return std::make_unique<const Lion>(config.beta1(), config.beta2());
}

}  // namespace lodestone::server
#endif  // HWY_ONCE
