// The loop that every optimizer shares. Included once per instruction set, after hwy/foreach_target.h.
//
// A rule is a small struct with `static constexpr uint32_t kVectors` (its state vectors: 0, 1 or 2) and
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

#include <algorithm>
#include <cstring>
#include <limits>

#include "hwy/highway.h"
#include "server/optimizer/update.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone::server {
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

// The arrays of a range or a row, from its first element on.
struct Arrays {
  size_t count;
  size_t stride;  // From one state vector to the next.
  const uint8_t* gradient;
  const float* values_in;
  const float* state_in;
  float* values_out;
  float* state_out;
  const float* scalars_in;
  float* scalars_out;  // Null if other ranges of the block follow.
};

template <uint32_t kVectors>
HWY_INLINE Arrays ArraysOf(const UpdateWork& work) {
  const auto& [n, begin, count] = work.range;
  Arrays a{count,   StateLayout::Stride(n),  work.gradient, work.values_in + begin,
           nullptr, work.values_out + begin, nullptr,       nullptr,
           nullptr};
  if constexpr (kVectors > 0) {
    a.state_in = work.state_in + begin;
    a.state_out = work.state_out + begin;
    a.scalars_in = work.state_in + StateLayout::ScalarsAt(kVectors, n);
    if (begin + count == n) a.scalars_out = work.state_out + StateLayout::ScalarsAt(kVectors, n);
  }
  return a;
}

template <uint32_t kVectors>
HWY_INLINE Arrays ArraysOf(const RowUpdate& row, size_t n) {
  float* const state = row.values + n;
  float* const scalars = state + StateLayout::ScalarsAt(kVectors, n);
  return {n, StateLayout::Stride(n), row.gradient, row.values, state, row.values, state, scalars, scalars};
}

// Elements i … i + Lanes(d) - 1.
template <bool kIdentity, class D, class Rule>
HWY_INLINE void UpdateLanes(D d, const Arrays& a, size_t i, const GradientTransform& transform, const Rule& rule) {
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
    auto second = hn::LoadU(d, a.state_in + a.stride + i);
    rule(d, gradient, value, first, second);
    hn::StoreU(first, d, a.state_out + i);
    hn::StoreU(second, d, a.state_out + a.stride + i);
  }
  hn::StoreU(value, d, a.values_out + i);
}

template <bool kIdentity, class Rule>
HWY_INLINE void UpdateElements(const Arrays a, const GradientTransform transform, const Rule rule) {
  const hn::ScalableTag<float> whole;
  const hn::CappedTag<float, 4> four;
  const hn::CappedTag<float, 1> one;
  size_t i = 0;
  for (; i + hn::Lanes(whole) <= a.count; i += hn::Lanes(whole)) UpdateLanes<kIdentity>(whole, a, i, transform, rule);
  for (; i + hn::Lanes(four) <= a.count; i += hn::Lanes(four)) UpdateLanes<kIdentity>(four, a, i, transform, rule);
  for (; i < a.count; ++i) UpdateLanes<kIdentity>(one, a, i, transform, rule);
}

template <bool kIdentity, class RuleOf>
HWY_INLINE void UpdateAllAs(const UpdateWork& work, const GradientTransform& transform, const RuleOf& rule_of) {
  constexpr uint32_t kVectors = decltype(rule_of(Arrays()))::kVectors;
  const size_t n = work.range.n;
  if (!work.rows.empty()) {
    for (const RowUpdate& row : work.rows) {
      const Arrays a = ArraysOf<kVectors>(row, n);
      UpdateElements<kIdentity>(a, transform, rule_of(a));
    }
    return;
  }
  const Arrays a = ArraysOf<kVectors>(work);
  UpdateElements<kIdentity>(a, transform, rule_of(a));
  if (kVectors > 1 && a.scalars_out != nullptr && work.state_out != work.state_in) {
    std::fill(work.state_out + n, work.state_out + a.stride, 0.0f);
  }
}

// Applies to a range, or to every row, the rule that `rule_of` gives for its arrays.
template <class RuleOf>
HWY_INLINE void UpdateAll(const UpdateWork& work, const GradientTransform& transform, const RuleOf& rule_of) {
  if (transform.IsIdentity()) {
    UpdateAllAs<true>(work, transform, rule_of);
  } else {
    UpdateAllAs<false>(work, transform, rule_of);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone::server
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
