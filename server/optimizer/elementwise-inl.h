// The loop that every optimizer shares. Included once per instruction set, after hwy/foreach_target.h.
//
// A rule is a small struct with `static constexpr int kVectors` (its state vectors: 0, 1 or 2) and
//   template <class D, class V> void operator()(D d, V gradient, V& value, V& state…) const
// in element-wise operations that IEEE 754 rounds correctly (no MulAdd): then whole vectors, the four-lane vectors and
// the single lanes of the tail, on any CPU, give the same bits.

// Per-target include guard.
#if defined(LODESTONE_SERVER_OPTIMIZER_ELEMENTWISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LODESTONE_SERVER_OPTIMIZER_ELEMENTWISE_INL_H_
#undef LODESTONE_SERVER_OPTIMIZER_ELEMENTWISE_INL_H_
#else
#define LODESTONE_SERVER_OPTIMIZER_ELEMENTWISE_INL_H_
#endif

#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "server/optimizer/update.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A vector of floats from bytes that are not aligned to float.
template <class D>
HWY_INLINE hn::Vec<D> LoadBytes(D d, const uint8_t* bytes) {
#if HWY_TARGET == HWY_SCALAR
  float value;
  std::memcpy(&value, bytes, sizeof(value));
  return hn::Set(d, value);
#else
  return hn::BitCast(d, hn::LoadU(hn::Repartition<uint8_t, D>(), bytes));
#endif
}

// x, at most the largest float: an accumulator of squares that became infinite would never recover.
template <class D, class V>
HWY_INLINE V AtMostFinite(D d, V x) {
  return hn::Min(x, hn::Set(d, std::numeric_limits<float>::max()));
}

template <bool kIdentity, class D, class V>
HWY_INLINE V Transform(D d, const GradientTransform& transform, V gradient, V value) {
  if constexpr (kIdentity) return gradient;
  const V bound = hn::Set(d, transform.bound);
  gradient = hn::Min(hn::Max(gradient, hn::Neg(bound)), bound);
  gradient = hn::Mul(gradient, hn::Set(d, transform.scale));
  return hn::Add(gradient, hn::Mul(hn::Set(d, transform.decay), value));
}

// Elements i … i + Lanes(d) - 1.
template <bool kIdentity, class D, class Rule>
HWY_INLINE void UpdateLanes(D d, const UpdateArrays& a, size_t i, const GradientTransform& transform,
                            const Rule& rule) {
  auto value = hn::LoadU(d, a.values_in + i);
  const auto gradient = Transform<kIdentity>(d, transform, LoadBytes(d, a.gradient + i * sizeof(float)), value);
  if constexpr (Rule::kVectors == 0) {
    rule(d, gradient, value);
  } else if constexpr (Rule::kVectors == 1) {
    auto first = hn::LoadU(d, a.state_in + i);
    rule(d, gradient, value, first);
    hn::StoreU(first, d, a.state_out + i);
  } else {
    auto first = hn::LoadU(d, a.state_in + i);
    auto second = hn::LoadU(d, a.state_in + a.n + i);
    rule(d, gradient, value, first, second);
    hn::StoreU(first, d, a.state_out + i);
    hn::StoreU(second, d, a.state_out + a.n + i);
  }
  hn::StoreU(value, d, a.values_out + i);
}

template <bool kIdentity, class Rule>
HWY_INLINE void UpdateAllAs(const UpdateArrays a, const GradientTransform transform, const Rule rule) {
  const hn::ScalableTag<float> whole;
  const hn::CappedTag<float, 4> four;
  const hn::CappedTag<float, 1> one;
  size_t i = 0;
  for (; i + hn::Lanes(whole) <= a.n; i += hn::Lanes(whole)) UpdateLanes<kIdentity>(whole, a, i, transform, rule);
  for (; i + hn::Lanes(four) <= a.n; i += hn::Lanes(four)) UpdateLanes<kIdentity>(four, a, i, transform, rule);
  for (; i < a.n; ++i) UpdateLanes<kIdentity>(one, a, i, transform, rule);
}

// Applies `rule` to all elements.
template <class Rule>
HWY_INLINE void UpdateAll(const UpdateArrays& a, const GradientTransform& transform, const Rule& rule) {
  if (transform.IsIdentity()) {
    UpdateAllAs<true>(a, transform, rule);
  } else {
    UpdateAllAs<false>(a, transform, rule);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
