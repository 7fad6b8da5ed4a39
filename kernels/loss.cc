// With a logit z, a label y and n rows:
//   logistic   loss = max(z, 0) - z y + ln(1 + e^-|z|)     p = 1 / (1 + e^-z)               dz = (p - y) / n
//   softmax    loss = ln sum_c e^(z_c - max z) - (z_y - max z)   p_c = e^(z_c - max z) / sum     dz_c = (p_c - [c = y])
//   / n squared    loss = (z - y)^2 / 2                        p = z                            dz = (z - y) / n
// and w times the loss and the gradient of a row with the weight w. No exponent is positive, so nothing overflows.
// Terms are float, sums of them double.
#include "kernels/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/loss.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// e^x, and NaN for NaN, which hn::Exp makes 0.
template <class D, class V>
HWY_INLINE V ExpOrNan(D d, V x) {
  // NaN would become an int on the way, which C++, and so Highway's plain target, does not define.
  const auto nan = hn::IsNaN(x);
  return hn::IfThenElse(nan, x, hn::Exp(d, hn::IfThenZeroElse(nan, x)));
}

// The rows from r that fill vectors of DD's double lanes, which count as many as the floats'; returns where it stopped.
template <class DD>
HWY_INLINE size_t LogisticSpan(DD dd, size_t r, size_t rows, float scale, const float* logits, const float* labels,
                               const float* weights, float* dlogits, float* predictions, double& loss_sum) {
  const hn::Rebind<float, DD> d;
  const auto one = hn::Set(d, 1.0f);
  auto sum = hn::Zero(dd);
  for (; r + hn::Lanes(d) <= rows; r += hn::Lanes(d)) {
    const auto z = hn::LoadU(d, logits + r);
    const auto y = hn::LoadU(d, labels + r);
    const auto w = weights == nullptr ? one : hn::LoadU(d, weights + r);
    const auto e = ExpOrNan(d, hn::Neg(hn::Abs(z)));
    const auto negative = hn::Lt(z, hn::Zero(d));
    const auto p = hn::Div(hn::IfThenElse(negative, e, one), hn::Add(one, e));
    const auto loss = hn::Add(hn::NegMulAdd(z, y, hn::IfThenZeroElse(negative, z)), hn::Log1p(d, e));
    sum = hn::Add(sum, hn::PromoteTo(dd, hn::Mul(loss, w)));
    if (predictions != nullptr) hn::StoreU(p, d, predictions + r);
    if (dlogits != nullptr) hn::StoreU(hn::Mul(hn::Sub(p, y), hn::Mul(hn::Set(d, scale), w)), d, dlogits + r);
  }
  loss_sum += hn::GetLane(hn::SumOfLanes(dd, sum));
  return r;
}

double LogisticLoss(size_t rows, const float* logits, const float* labels, const float* weights, float* dlogits,
                    float* predictions) {
  const float scale = 1.0f / static_cast<float>(rows);
  double sum = 0;
  const size_t r =
      LogisticSpan(hn::ScalableTag<double>(), 0, rows, scale, logits, labels, weights, dlogits, predictions, sum);
  LogisticSpan(hn::CappedTag<double, 1>(), r, rows, scale, logits, labels, weights, dlogits, predictions, sum);
  return sum;
}

// x[i] = e^x[i] for n rounded up to whole vectors, which x must have room for.
void ExpInPlace(size_t n, float* x) {
  const hn::ScalableTag<float> d;
  for (size_t i = 0; i < n; i += hn::Lanes(d)) hn::StoreU(ExpOrNan(d, hn::LoadU(d, x + i)), d, x + i);
}

template <class DD>
HWY_INLINE size_t SquaredSpan(DD dd, size_t r, size_t rows, float scale, const float* logits, const float* labels,
                              const float* weights, float* dlogits, double& loss_sum) {
  const hn::Rebind<float, DD> d;
  auto sum = hn::Zero(dd);
  for (; r + hn::Lanes(d) <= rows; r += hn::Lanes(d)) {
    const auto error = hn::Sub(hn::LoadU(d, logits + r), hn::LoadU(d, labels + r));
    const auto w = weights == nullptr ? hn::Set(d, 1.0f) : hn::LoadU(d, weights + r);
    const auto wide = hn::PromoteTo(dd, error);
    sum = hn::MulAdd(hn::Mul(wide, hn::PromoteTo(dd, w)), wide, sum);
    if (dlogits != nullptr) hn::StoreU(hn::Mul(error, hn::Mul(hn::Set(d, scale), w)), d, dlogits + r);
  }
  loss_sum += 0.5 * hn::GetLane(hn::SumOfLanes(dd, sum));
  return r;
}

double SquaredLoss(size_t rows, const float* logits, const float* labels, const float* weights, float* dlogits) {
  const float scale = 1.0f / static_cast<float>(rows);
  double sum = 0;
  const size_t r = SquaredSpan(hn::ScalableTag<double>(), 0, rows, scale, logits, labels, weights, dlogits, sum);
  SquaredSpan(hn::CappedTag<double, 1>(), r, rows, scale, logits, labels, weights, dlogits, sum);
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lodestone::kernels::cpu {

HWY_EXPORT(LogisticLoss);
HWY_EXPORT(ExpInPlace);
HWY_EXPORT(SquaredLoss);

namespace {

// Exponentials are taken for this many elements at once: few classes alone would leave most of a vector empty.
constexpr size_t kSoftmaxElements = 4096;
constexpr size_t kVectorFloats = 64;  // At least a vector of any instruction set here.

// One row of the softmax, given exponentials[c] = e^(logits[c] - logits[largest]). Returns its loss.
double SoftmaxRow(size_t classes, const float* logits, size_t largest, const float* exponentials, float label,
                  float scale, float* dlogits) {
  double sum = 0;
  for (size_t c = 0; c < classes; ++c) sum += exponentials[c];
  const bool known = label >= 0.0f && label < static_cast<float>(classes);
  if (dlogits != nullptr) {
    const float factor = known ? static_cast<float>(scale / sum) : std::numeric_limits<float>::quiet_NaN();
    for (size_t c = 0; c < classes; ++c) dlogits[c] = exponentials[c] * factor;
    if (known) dlogits[static_cast<size_t>(label)] -= scale;
  }
  if (!known) return std::numeric_limits<double>::quiet_NaN();
  return std::log(sum) - (static_cast<double>(logits[static_cast<size_t>(label)]) - logits[largest]);
}

}  // namespace

double LogisticLoss(size_t rows, const float* logits, const float* labels, const float* weights, float* dlogits,
                    float* predictions) {
  if (rows == 0) return 0.0;
  return HWY_DYNAMIC_DISPATCH(LogisticLoss)(rows, logits, labels, weights, dlogits, predictions);
}

double SoftmaxLoss(size_t rows, size_t classes, const float* logits, const float* labels, const float* weights,
                   float* dlogits, float* predictions) {
  if (rows == 0 || classes == 0) return 0.0;
  const float scale = 1.0f / static_cast<float>(rows);
  const size_t rows_at_once = std::min(rows, std::max<size_t>(1, kSoftmaxElements / classes));
  std::vector<float> exponentials(rows_at_once * classes + kVectorFloats);
  std::vector<size_t> largest(rows_at_once);
  double sum = 0;
  for (size_t begin = 0; begin < rows; begin += rows_at_once) {
    const size_t count = std::min(rows_at_once, rows - begin);
    for (size_t r = 0; r < count; ++r) {
      const float* z = logits + (begin + r) * classes;
      largest[r] = std::max_element(z, z + classes) - z;
      for (size_t c = 0; c < classes; ++c) exponentials[r * classes + c] = z[c] - z[largest[r]];
      if (predictions != nullptr) predictions[begin + r] = static_cast<float>(largest[r]);
    }
    HWY_DYNAMIC_DISPATCH(ExpInPlace)(count * classes, exponentials.data());
    for (size_t r = 0; r < count; ++r) {
      const size_t at = (begin + r) * classes;
      const float weight = weights != nullptr ? weights[begin + r] : 1.0f;
      sum += weight * SoftmaxRow(classes, logits + at, largest[r], exponentials.data() + r * classes, labels[begin + r],
                                 scale * weight, dlogits != nullptr ? dlogits + at : nullptr);
    }
  }
  return sum;
}

double SquaredLoss(size_t rows, const float* logits, const float* labels, const float* weights, float* dlogits,
                   float* predictions) {
  if (rows == 0) return 0.0;
  if (predictions != nullptr) std::copy_n(logits, rows, predictions);
  return HWY_DYNAMIC_DISPATCH(SquaredLoss)(rows, logits, labels, weights, dlogits);
}

}  // namespace lodestone::kernels::cpu
#endif  // HWY_ONCE
