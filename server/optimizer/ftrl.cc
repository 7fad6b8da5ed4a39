#include "server/optimizer/ftrl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optimizer/ftrl.cc"
#include "hwy/foreach_target.h"
#include "server/optimizer/elementwise-inl.h"

#ifndef LODESTONE_SERVER_OPTIMIZER_FTRL_ONCE_
#define LODESTONE_SERVER_OPTIMIZER_FTRL_ONCE_
namespace lodestone::server {
namespace {

// The constants of one step.
struct FtrlStep {
  float rate = 0;
  float offset = 0;  // beta + alpha l2
  float l1 = 0;      // alpha l1
};

}  // namespace
}  // namespace lodestone::server
#endif

HWY_BEFORE_NAMESPACE();
namespace lodestone::server {
namespace HWY_NAMESPACE {

struct FtrlRule {
  static constexpr uint32_t kVectors = 2;
  FtrlStep step;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V g, V& w, V& z, V& n) const {
    const V zero = hn::Zero(d);
    const V offset = hn::Set(d, step.offset);
    const V l1 = hn::Set(d, step.l1);
    const V n_next = AtMostFinite(d, hn::Add(n, hn::Mul(g, g)));
    const V root = hn::Sqrt(n_next);
    const V start = hn::IfThenElse(hn::Eq(n, zero), hn::Neg(hn::Mul(offset, w)), z);
    const V pull = hn::Mul(hn::Sub(root, hn::Sqrt(n)), w);
    const V z_next = hn::Add(start, hn::Sub(hn::Mul(hn::Set(d, step.rate), g), pull));
    const V over = hn::Sub(z_next, hn::CopySign(l1, z_next));
    const V solution = hn::Neg(hn::Div(over, hn::Add(offset, root)));
    const auto touched = hn::Gt(n_next, zero);
    const V sparse = hn::IfThenElseZero(hn::Gt(hn::Abs(z_next), l1), solution);
    w = hn::IfThenElse(touched, sparse, w);
    z = hn::IfThenElse(touched, z_next, z);
    n = n_next;
  }
};

void FtrlUpdate(const UpdateWork& work, const GradientTransform& transform, const FtrlStep& step) {
  UpdateAll(work, transform, [&](const Arrays&) { return FtrlRule{step}; });
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone::server
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::server {
namespace {

HWY_EXPORT(FtrlUpdate);

absl::Status CheckNotNegative(const char* field, float value) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("optimizer.ftrl.", field, " must not be negative, is ", value));
}

class Ftrl final : public Optimizer {
 public:
  Ftrl(float offset, float l1) : offset_(offset), l1_(l1) {}

  const char* name() const override { return "ftrl"; }
  StateLayout state_layout() const override { return {.vectors = 2}; }
  void InitializeState(float* state, size_t n) const override { std::fill_n(state, state_layout().FloatsFor(n), 0.0f); }
  void Run(const Step& step, const UpdateWork& work) const override {
    const FtrlStep ftrl{.rate = step.learning_rate, .offset = offset_, .l1 = l1_};
    HWY_DYNAMIC_DISPATCH(FtrlUpdate)(work, GradientTransform(step), ftrl);
  }

 private:
  const float offset_;  // beta + alpha l2
  const float l1_;      // alpha l1
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateFtrl(const v1::Ftrl& config, float learning_rate) {
  if (!(learning_rate > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer.learning_rate must be above 0 for ftrl, is ", learning_rate));
  }
  LODESTONE_RETURN_IF_ERROR(CheckNotNegative("beta", config.beta()));
  LODESTONE_RETURN_IF_ERROR(CheckNotNegative("l1", config.l1()));
  LODESTONE_RETURN_IF_ERROR(CheckNotNegative("l2", config.l2()));
  return std::make_unique<const Ftrl>(config.beta() + learning_rate * config.l2(), learning_rate * config.l1());
}

}  // namespace lodestone::server
#endif  // HWY_ONCE
