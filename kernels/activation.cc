// y = x + b; y = max(0, x + b); dx = [y > 0] dy; sums = 1^T x; y += a x; and, for dropout with rate p,
// y[i] = [h(seed, i) >= p 2^32] x[i] / (1 - p), where h is a hash with 32 bits.
#include "kernels/activation.h"

#include <algorithm>
#include <cstring>

#include "kernels/dropout-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"
#include "kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void AddBias(size_t rows, size_t cols, const float* bias, float* x) {
  for (size_t r = 0; r < rows; ++r, x += cols) {
    ForLanes(cols, [&](auto d, size_t c)
                       HWY_ATTR { hn::StoreU(hn::Add(hn::LoadU(d, x + c), hn::LoadU(d, bias + c)), d, x + c); });
  }
}

void AddBiasRelu(size_t rows, size_t cols, const float* bias, float* x) {
  for (size_t r = 0; r < rows; ++r, x += cols) {
    ForLanes(cols, [&](auto d, size_t c) HWY_ATTR {
      const auto y = hn::Add(hn::LoadU(d, x + c), hn::LoadU(d, bias + c));
      // Not Max, which would turn NaN into 0.
      hn::StoreU(hn::IfThenZeroElse(hn::Lt(y, hn::Zero(d)), y), d, x + c);
    });
  }
}

void ReluBackward(size_t n, const float* y, float* dx) {
  ForLanes(n, [&](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::IfThenElseZero(hn::Gt(hn::LoadU(d, y + i), hn::Zero(d)), hn::LoadU(d, dx + i)), d, dx + i);
  });
}

// One round of a 32-bit mixer (Wellons, "Hash Prospector": low bias).
template <class V>
HWY_INLINE V Mix(V x) {
  const hn::DFromV<V> d;
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  x = hn::Mul(x, hn::Set(d, 0x21f0aaadu));
  x = hn::Xor(x, hn::ShiftRight<15>(x));
  x = hn::Mul(x, hn::Set(d, 0xd35a2d97u));
  return hn::Xor(x, hn::ShiftRight<15>(x));
}

// Elements 0 … n - 1 of a run of at most 2^32 of them. An element goes if Mix(Mix(i ^ key0) + key1) < threshold.
void DropoutRun(size_t n, uint32_t threshold, float scale, uint32_t key0, uint32_t key1, float* x) {
  ForLanes(n, [&](auto d, size_t i) HWY_ATTR {
    const hn::RebindToUnsigned<decltype(d)> du;
    // Iota of a constant is one; of a variable it may be built in memory.
    const auto index = hn::Add(hn::Iota(du, 0), hn::Set(du, static_cast<uint32_t>(i)));
    const auto hash = Mix(hn::Add(Mix(hn::Xor(index, hn::Set(du, key0))), hn::Set(du, key1)));
    const auto gone = hn::RebindMask(d, hn::Lt(hash, hn::Set(du, threshold)));
    hn::StoreU(hn::IfThenZeroElse(gone, hn::Mul(hn::LoadU(d, x + i), hn::Set(d, scale))), d, x + i);
  });
}

// Four rows at a time: a load and a store of the sums for each four rows, and pairs of short sums round less.
void ColumnSums(size_t rows, size_t cols, const float* x, float* sums) {
  std::fill_n(sums, cols, 0.0f);
  size_t r = 0;
  for (; r + 4 <= rows; r += 4, x += 4 * cols) {
    ForLanes(cols, [&](auto d, size_t c) HWY_ATTR {
      const auto first = hn::Add(hn::LoadU(d, x + c), hn::LoadU(d, x + cols + c));
      const auto second = hn::Add(hn::LoadU(d, x + 2 * cols + c), hn::LoadU(d, x + 3 * cols + c));
      hn::StoreU(hn::Add(hn::LoadU(d, sums + c), hn::Add(first, second)), d, sums + c);
    });
  }
  for (; r < rows; ++r, x += cols) {
    ForLanes(cols, [&](auto d, size_t c)
                       HWY_ATTR { hn::StoreU(hn::Add(hn::LoadU(d, sums + c), hn::LoadU(d, x + c)), d, sums + c); });
  }
}

void Axpy(size_t n, float alpha, const float* x, float* y) {
  ForLanes(n, [&](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::MulAdd(hn::Set(d, alpha), hn::LoadU(d, x + i), hn::LoadU(d, y + i)), d, y + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lodestone::kernels::cpu {
HWY_EXPORT(AddBias);
HWY_EXPORT(AddBiasRelu);
HWY_EXPORT(ReluBackward);
HWY_EXPORT(DropoutRun);
HWY_EXPORT(ColumnSums);
HWY_EXPORT(Axpy);

void AddBias(size_t rows, size_t cols, const float* bias, float* x) {
  HWY_DYNAMIC_DISPATCH(AddBias)(rows, cols, bias, x);
}

void AddBiasRelu(size_t rows, size_t cols, const float* bias, float* x) {
  HWY_DYNAMIC_DISPATCH(AddBiasRelu)(rows, cols, bias, x);
}

void ReluBackward(size_t n, const float* y, float* dx) { HWY_DYNAMIC_DISPATCH(ReluBackward)(n, y, dx); }

void Dropout(size_t n, float rate, uint64_t seed, float* x) {
  if (rate <= 0.0f) return;
  if (rate >= 1.0f) {
    std::fill_n(x, n, 0.0f);
    return;
  }
  for (uint64_t begin = 0; begin < n; begin += kDropoutRun) {
    const DropoutFate fate = FateOf(rate, seed, begin / kDropoutRun);
    HWY_DYNAMIC_DISPATCH(DropoutRun)
    (std::min<uint64_t>(kDropoutRun, n - begin), fate.threshold, fate.scale, fate.key0, fate.key1, x + begin);
  }
}

void ColumnSums(size_t rows, size_t cols, const float* x, float* sums) {
  HWY_DYNAMIC_DISPATCH(ColumnSums)(rows, cols, x, sums);
}

void Axpy(size_t n, float alpha, const float* x, float* y) { HWY_DYNAMIC_DISPATCH(Axpy)(n, alpha, x, y); }

void CopyColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y) {
  if (cols == 0) return;
  for (size_t r = 0; r < rows; ++r) std::memcpy(y + r * stride + col, x + r * cols, cols * sizeof(float));
}

void ExtractColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y) {
  if (cols == 0) return;
  for (size_t r = 0; r < rows; ++r) std::memcpy(y + r * cols, x + r * stride + col, cols * sizeof(float));
}

}  // namespace lodestone::kernels::cpu
#endif  // HWY_ONCE
