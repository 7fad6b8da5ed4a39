#include "server/optimizer/rowwise_adagrad.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "server/optimizer/rowwise_adagrad.cc"
#include "hwy/foreach_target.h"
#include "server/optimizer/elementwise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone::server {
namespace HWY_NAMESPACE {

// s is of the whole row, and new already.
struct RowwiseAdagradRule {
  static constexpr uint32_t kVectors = 0;
  float rate;
  float root;  // sqrt(s) + epsilon

  template <class D, class V>
  HWY_INLINE void operator()(D d, V g, V& w) const {
    w = hn::Sub(w, hn::Div(hn::Mul(hn::Set(d, rate), g), hn::Set(d, root)));
  }
};

// The mean square of a row's gradient, after the transform. It is made of four sums, one of each fourth element,
// however wide the CPU's vectors are: the same bits everywhere.
template <bool kIdentity>
float MeanSquare(const Arrays& a, const GradientTransform& transform) {
  if (a.count == 0) return 0;
  float sums[4] = {};
  size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> four;
  auto sum = hn::Zero(four);
  for (; i + 4 <= a.count; i += 4) {
    const auto g = Transform<kIdentity>(four, transform, LoadBytes(four, a.gradient + i * sizeof(float)),
                                        hn::LoadU(four, a.values_in + i));
    sum = hn::Add(sum, hn::Mul(g, g));
  }
  hn::StoreU(sum, four, sums);
#endif
  const hn::CappedTag<float, 1> one;
  for (; i < a.count; ++i) {
    const float g = hn::GetLane(Transform<kIdentity>(one, transform, LoadBytes(one, a.gradient + i * sizeof(float)),
                                                     hn::LoadU(one, a.values_in + i)));
    sums[i % 4] += g * g;
  }
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) / static_cast<float>(a.count);
}

// One row.
void RowwiseAdagradRow(Arrays a, const GradientTransform& transform, float rate, float epsilon) {
  const bool identity = transform.IsIdentity();
  const float mean = identity ? MeanSquare<true>(a, transform) : MeanSquare<false>(a, transform);
  // At most the largest float: an accumulator that became infinite would never recover.
  const float s = std::min(*a.scalars_in + mean, std::numeric_limits<float>::max());
  *a.scalars_out = s;
  const RowwiseAdagradRule rule{rate, std::sqrt(s) + epsilon};
  if (identity) {
    UpdateElements<true>(a, transform, rule);
  } else {
    UpdateElements<false>(a, transform, rule);
  }
}

void RowwiseAdagradUpdate(const UpdateWork& work, const GradientTransform& transform, float rate, float epsilon) {
  for (const RowUpdate& row : work.rows) {
    RowwiseAdagradRow(ArraysOf<0>(row, work.range.n), transform, rate, epsilon);
  }
  if (!work.rows.empty()) return;
  Arrays a = ArraysOf<0>(work);
  a.scalars_in = work.state_in;
  a.scalars_out = work.state_out;
  RowwiseAdagradRow(a, transform, rate, epsilon);
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone::server
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "server/optimizer/adagrad.h"

namespace lodestone::server {
namespace {

HWY_EXPORT(RowwiseAdagradUpdate);

constexpr char kName[] = "rowwise_adagrad";

class RowwiseAdagrad final : public Optimizer {
 public:
  RowwiseAdagrad(float initial_accumulator, float epsilon)
      : initial_accumulator_(initial_accumulator), epsilon_(epsilon) {}

  const char* name() const override { return kName; }
  StateLayout state_layout() const override { return {.scalars = 1}; }
  void InitializeState(float* state, size_t) const override { *state = initial_accumulator_; }
  void Run(const Step& step, const UpdateWork& work) const override {
    LODESTONE_CHECK(work.range.count == work.range.n);
    HWY_DYNAMIC_DISPATCH(RowwiseAdagradUpdate)(work, GradientTransform(step), step.learning_rate, epsilon_);
  }

 private:
  const float initial_accumulator_;
  const float epsilon_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const Optimizer>> CreateRowwiseAdagrad(const v1::RowwiseAdagrad& config, bool has_rows) {
  v1::Adagrad adagrad;
  adagrad.set_initial_accumulator(config.initial_accumulator());
  adagrad.set_epsilon(config.epsilon());
  auto by_element = CreateAdagrad(adagrad, kName);
  if (!has_rows || !by_element.ok()) return by_element;
  return std::make_unique<const RowwiseAdagrad>(config.initial_accumulator(), config.epsilon());
}

}  // namespace lodestone::server
#endif  // HWY_ONCE
