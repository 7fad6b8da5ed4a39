#include "server/optimizer/adam.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optimizer/adam.cc"
#include "hwy/foreach_target.h"
#include "server/optimizer/elementwise-inl.h"

#ifndef LODESTONE_SERVER_OPTIMIZER_ADAM_ONCE_
#define LODESTONE_SERVER_OPTIMIZER_ADAM_ONCE_

#include <algorithm>
#include <cmath>

#include "server/optimizer/power.h"
#include "server/optimizer/update.h"

namespace lodestone::server {
namespace {

// Counts are exact up to 2^24, where they stay: no beta below 1 in float has a power left there that would matter.
constexpr float kCountMax = 16777216.0f;

// Adam's hyperparameters.
struct AdamParameters {
  float beta1 = 0;
  float beta2 = 0;
  float epsilon = 0;
};

// The constants of one step.
struct AdamStep {
  float beta1 = 0;
  float beta1_rest = 0;  // 1 - beta1
  float beta2 = 0;
  float beta2_rest = 0;  // 1 - beta2
  float rate = 0;        // learning rate / (1 - beta1 ^ count)
  float root_scale = 0;  // 1 / sqrt(1 - beta2 ^ count)
  float epsilon = 0;
  float keep = 1;  // What decoupled weight decay leaves of the value.
};

// Step number `count`, from 1.
AdamStep MakeAdamStep(const AdamParameters& p, float learning_rate, float keep, float count) {
  const uint32_t exponent = static_cast<uint32_t>(count);
  return {.beta1 = p.beta1,
          .beta1_rest = 1.0f - p.beta1,
          .beta2 = p.beta2,
          .beta2_rest = 1.0f - p.beta2,
          .rate = static_cast<float>(learning_rate / (1.0 - PowerOf(p.beta1, exponent))),
          .root_scale = static_cast<float>(1.0 / std::sqrt(1.0 - PowerOf(p.beta2, exponent))),
          .epsilon = p.epsilon,
          .keep = keep};
}

}  // namespace
}  // namespace lodestone::server
#endif

HWY_BEFORE_NAMESPACE();
namespace lodestone::server {
namespace HWY_NAMESPACE {

// m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
// w = keep w - rate m / (sqrt(v) root_scale + epsilon).
struct AdamRule {
  static constexpr uint32_t kVectors = 2;
  AdamStep step;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V g, V& w, V& m, V& v) const {
    m = hn::Add(hn::Mul(hn::Set(d, step.beta1), m), hn::Mul(hn::Set(d, step.beta1_rest), g));
    v = hn::Add(hn::Mul(hn::Set(d, step.beta2), v), hn::Mul(hn::Mul(hn::Set(d, step.beta2_rest), g), g));
    v = AtMostFinite(d, v);
    const V root = hn::Add(hn::Mul(hn::Sqrt(v), hn::Set(d, step.root_scale)), hn::Set(d, step.epsilon));
    w = hn::Sub(hn::Mul(hn::Set(d, step.keep), w), hn::Div(hn::Mul(hn::Set(d, step.rate), m), root));
  }
};

void AdamUpdate(const UpdateWork& work, const GradientTransform& transform, const AdamParameters& parameters,
                float learning_rate, float keep) {
  AdamStep step;
  float count = 0;  // Of `step`.
  UpdateAll(work, transform, [&](const Arrays& arrays) {
    const float next = std::min(*arrays.scalars_in + 1.0f, kCountMax);
    if (next != count) step = MakeAdamStep(parameters, learning_rate, keep, next);
    count = next;
    if (arrays.scalars_out != nullptr) *arrays.scalars_out = next;
    return AdamRule{step};
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone::server
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::server {
namespace {

HWY_EXPORT(AdamUpdate);

// Adam and AdamW: bias correction by a count that stands behind the two state vectors.
class Adam final : public Optimizer {
 public:
  // `decoupled`: weight decay shrinks the values instead of joining the gradient (AdamW).
  Adam(const AdamParameters& parameters, bool decoupled) : parameters_(parameters), decoupled_(decoupled) {}

  const char* name() const override { return NameOf(decoupled_); }
  StateLayout state_layout() const override { return {.vectors = 2, .scalars = 1}; }
  void InitializeState(float* state, size_t n) const override { std::fill_n(state, state_layout().FloatsFor(n), 0.0f); }

  static const char* NameOf(bool decoupled) { return decoupled ? "adamw" : "adam"; }

 protected:
  void Run(const Step& step, const UpdateWork& work) const override {
    const float keep = decoupled_ ? 1.0f - step.learning_rate * step.weight_decay : 1.0f;
    const GradientTransform transform(step, decoupled_);
    HWY_DYNAMIC_DISPATCH(AdamUpdate)(work, transform, parameters_, step.learning_rate, keep);
  }

 private:
  const AdamParameters parameters_;
  const bool decoupled_;
};

// INVALID_ARGUMENT, naming the field of optimizer.`method`, if they make no sense.
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

template <typename Config>
absl::StatusOr<std::unique_ptr<const Optimizer>> Create(const Config& config, bool decoupled) {
  const AdamParameters parameters{config.beta1(), config.beta2(), config.epsilon()};
  LODESTONE_RETURN_IF_ERROR(CheckAdam(Adam::NameOf(decoupled), parameters));
  return std::make_unique<const Adam>(parameters, decoupled);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateAdam(const v1::Adam& config) {
  return Create(config, /*decoupled=*/false);
}

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateAdamW(const v1::AdamW& config) {
  return Create(config, /*decoupled=*/true);
}

}  // namespace lodestone::server
#endif  // HWY_ONCE
