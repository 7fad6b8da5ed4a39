#include "server/optimizer/sgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optimizer/sgd.cc"
#include "hwy/foreach_target.h"
#include "server/optimizer/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone {
namespace HWY_NAMESPACE {

struct SgdRule {
  static constexpr int kVectors = 0;
  float rate;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V g, V& w) const {
    w = hn::Sub(w, hn::Mul(hn::Set(d, rate), g));
  }
};

void SgdUpdate(const UpdateArrays& arrays, const GradientTransform& transform, float rate) {
  UpdateAll(arrays, transform, SgdRule{rate});
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace lodestone {
namespace {

HWY_EXPORT(SgdUpdate);

class Sgd final : public Optimizer {
 public:
  const char* name() const override { return "sgd"; }
  StateLayout state_layout() const override { return {}; }
  void InitializeState(float* state, size_t n) const override { (void)state, (void)n; }
  void Update(const Step& step, size_t n, const uint8_t* gradient, const float* values_in, const float* state_in,
              float* values_out, float* state_out) const override {
    const UpdateArrays arrays{n, gradient, values_in, state_in, values_out, state_out};
    HWY_DYNAMIC_DISPATCH(SgdUpdate)(arrays, GradientTransform(step), step.learning_rate);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateSgd(const v1::Sgd&) { return std::make_unique<const Sgd>(); }

}  // namespace lodestone
#endif  // HWY_ONCE
