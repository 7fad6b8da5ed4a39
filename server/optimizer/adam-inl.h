// Adam's rule for elementwise-inl.h. Included once per instruction set.

// Per-target include guard.
#if defined(LODESTONE_SERVER_OPTIMIZER_ADAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LODESTONE_SERVER_OPTIMIZER_ADAM_INL_H_
#undef LODESTONE_SERVER_OPTIMIZER_ADAM_INL_H_
#else
#define LODESTONE_SERVER_OPTIMIZER_ADAM_INL_H_
#endif

#include "server/optimizer/adam_core.h"
#include "server/optimizer/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone {
namespace HWY_NAMESPACE {

// m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
// w = keep w - rate m / (sqrt(v) root_scale + epsilon).
struct AdamRule {
  static constexpr int kVectors = 2;
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

}  // namespace HWY_NAMESPACE
}  // namespace lodestone
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
