// A loop over n floats in vectors: full ones, then ever smaller ones for the rest. Included once for each instruction
// set.
#if defined(LODESTONE_KERNELS_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LODESTONE_KERNELS_LANES_INL_H_
#undef LODESTONE_KERNELS_LANES_INL_H_
#else
#define LODESTONE_KERNELS_LANES_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone::kernels::cpu {
namespace HWY_NAMESPACE {

// Calls body(d, i) for the Lanes(d) floats from i while they fit before n; returns where it stopped.
template <class D, class Body>
HWY_INLINE size_t ForFullLanes(D d, size_t i, size_t n, const Body& body) {
  for (; i + hwy::HWY_NAMESPACE::Lanes(d) <= n; i += hwy::HWY_NAMESPACE::Lanes(d)) body(d, i);
  return i;
}

// Calls body(d, i) so that the lanes of all calls together are the floats 0 … n - 1, each once.
template <class Body>
HWY_INLINE void ForLanes(size_t n, const Body& body) {
  size_t i = ForFullLanes(hwy::HWY_NAMESPACE::ScalableTag<float>(), 0, n, body);
  i = ForFullLanes(hwy::HWY_NAMESPACE::CappedTag<float, 8>(), i, n, body);
  i = ForFullLanes(hwy::HWY_NAMESPACE::CappedTag<float, 4>(), i, n, body);
  i = ForFullLanes(hwy::HWY_NAMESPACE::CappedTag<float, 2>(), i, n, body);
  ForFullLanes(hwy::HWY_NAMESPACE::CappedTag<float, 1>(), i, n, body);
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone::kernels::cpu
HWY_AFTER_NAMESPACE();

#endif  // The guard toggles.
