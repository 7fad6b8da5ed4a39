// y = (x - m) / s with a row's mean m and s^2 = mean (x - m)^2 + epsilon; dx = (dy - mean dy - y mean (dy y)) / s.
// The variance is that of differences from the mean, which were computed before: no cancellation.
#include "kernels/layer_norm.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/layer_norm.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void LayerNorm(size_t rows, size_t cols, float epsilon, float* x, float* inverse) {
  const float share = 1.0f / static_cast<float>(cols);
  for (size_t r = 0; r < rows; ++r, x += cols) {
    float sum = 0, squares = 0;
    ForLanes(cols, [&](auto d, size_t c) HWY_ATTR { sum += hn::GetLane(hn::SumOfLanes(d, hn::LoadU(d, x + c))); });
    const float mean = sum * share;
    ForLanes(cols, [&](auto d, size_t c) HWY_ATTR {
      const auto difference = hn::Sub(hn::LoadU(d, x + c), hn::Set(d, mean));
      squares += hn::GetLane(hn::SumOfLanes(d, hn::Mul(difference, difference)));
    });
    inverse[r] = 1.0f / std::sqrt(squares * share + epsilon);
    ForLanes(cols, [&](auto d, size_t c) HWY_ATTR {
      const auto difference = hn::Sub(hn::LoadU(d, x + c), hn::Set(d, mean));
      hn::StoreU(hn::Mul(difference, hn::Set(d, inverse[r])), d, x + c);
    });
  }
}

void LayerNormBackward(size_t rows, size_t cols, const float* y, const float* inverse, float* dx) {
  const float share = 1.0f / static_cast<float>(cols);
  for (size_t r = 0; r < rows; ++r, y += cols, dx += cols) {
    float sum = 0, products = 0;
    ForLanes(cols, [&](auto d, size_t c) HWY_ATTR {
      const auto dy = hn::LoadU(d, dx + c);
      sum += hn::GetLane(hn::SumOfLanes(d, dy));
      products += hn::GetLane(hn::SumOfLanes(d, hn::Mul(dy, hn::LoadU(d, y + c))));
    });
    const float mean = sum * share, along = products * share;
    ForLanes(cols, [&](auto d, size_t c) HWY_ATTR {
      const auto rest = hn::Sub(hn::LoadU(d, dx + c), hn::Set(d, mean));
      const auto across = hn::NegMulAdd(hn::LoadU(d, y + c), hn::Set(d, along), rest);
      hn::StoreU(hn::Mul(across, hn::Set(d, inverse[r])), d, dx + c);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lodestone::kernels::cpu {
HWY_EXPORT(LayerNorm);
HWY_EXPORT(LayerNormBackward);

void LayerNorm(size_t rows, size_t cols, float epsilon, float* x, float* inverse) {
  HWY_DYNAMIC_DISPATCH(LayerNorm)(rows, cols, epsilon, x, inverse);
}

void LayerNormBackward(size_t rows, size_t cols, const float* y, const float* inverse, float* dx) {
  HWY_DYNAMIC_DISPATCH(LayerNormBackward)(rows, cols, y, inverse, dx);
}

}  // namespace lodestone::kernels::cpu
#endif  // HWY_ONCE
