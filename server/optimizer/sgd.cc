#include "server/optimizer/sgd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optimizer/sgd.cc"
#include "hwy/foreach_target.h"
#include "server/optimizer/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone::server {
namespace HWY_NAMESPACE {

struct SgdRule {
  static constexpr uint32_t kVectors = 0;
  float rate;

  template <class D, class V>
  HWY_INLINE void operator()(D d, V g, V& w) const {
    w = hn::Sub(w, hn::Mul(hn::Set(d, rate), g));
  }
};

void SgdUpdate(const UpdateWork& work, const GradientTransform& transform, float rate) {
  UpdateAll(work, transform, [&](const Arrays&) { return SgdRule{rate}; });
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone::server
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace lodestone::server {
namespace {

HWY_EXPORT(SgdUpdate);

class Sgd final : public Optimizer {
 public:
  const char* name() const override { return "sgd"; }
  StateLayout state_layout() const override { return {}; }
  void InitializeState(float* state, size_t n) const override { (void)state, (void)n; }
  void Run(const Step& step, const UpdateWork& work) const override {
    HWY_DYNAMIC_DISPATCH(SgdUpdate)(work, GradientTransform(step), step.learning_rate);
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateSgd(const v1::Sgd&) { return std::make_unique<const Sgd>(); }

}  // namespace lodestone::server
#endif  // HWY_ONCE
