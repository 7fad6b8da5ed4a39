// y = f(x + b); dx = f'(x) dy; sums = 1^T x; y += a x; and, for dropout with rate p,
// y[i] = [h(seed, i) >= p 2^32] x[i] / (1 - p), where h is a hash with 32 bits. Of activations f:
//   ReLU   f(x) = max(0, x)                                                        f'(x) = [f(x) > 0]
//   GELU   f(x) = x s, s = 1 / (1 + e^-t), t = 2 sqrt(2 / pi) (x + 0.044715 x^3)   f'(x) = s + x s (1 - s) t'
// GELU is x Phi(x) with the tanh formula of its paper (Hendrycks and Gimpel 2016), since (1 + tanh(t / 2)) / 2 = s.
#include "kernels/activation.h"

#include <algorithm>
#include <cstring>

#include "kernels/dropout-inl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "kernels/lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace lodestone::kernels::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Each activation: its value at x, and its derivative from what the backward pass keeps of it.
struct None {
  template <class D, class V>
  static HWY_INLINE V Value(D, V x) {
    return x;
  }
  template <class D, class V>
  static HWY_INLINE V Backward(D, V, V dy) {
    return dy;
  }
};

struct Relu {
  template <class D, class V>
  static HWY_INLINE V Value(D d, V x) {
    return hn::IfThenZeroElse(hn::Lt(x, hn::Zero(d)), x);  // Not Max, which would turn NaN into 0.
  }
  template <class D, class V>
  static HWY_INLINE V Backward(D d, V y, V dy) {
    return hn::IfThenElseZero(hn::Gt(y, hn::Zero(d)), dy);
  }
};

struct Gelu {
  static constexpr float kScale = 1.5957691216f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f;
  static constexpr float kBound = 10.0f;  // s is 0 or 1 beyond it, to 1e-37, and e^-t finite within.

  template <class D, class V>
  static HWY_INLINE V AtLeast(D d, V x) {  // Keeps NaN.
    return hn::IfThenElse(hn::Lt(x, hn::Set(d, -kBound)), hn::Set(d, -kBound), x);
  }
  // Within the bounds, NaN too.
  template <class D, class V>
  static HWY_INLINE V Bounded(D d, V x) {
    const V below = hn::IfThenElse(hn::Lt(x, hn::Set(d, kBound)), x, hn::Set(d, kBound));
    return AtLeast(d, below);
  }
  // e^-t.
  template <class D, class V>
  static HWY_INLINE V Tail(D d, V bounded) {
    const V inner = hn::MulAdd(hn::Mul(hn::Set(d, kCubic), hn::Mul(bounded, bounded)), bounded, bounded);
    return hn::Exp(d, hn::Mul(hn::Set(d, -kScale), inner));
  }
  template <class D, class V>
  static HWY_INLINE V Value(D d, V x) {
    return hn::Div(AtLeast(d, x), hn::Add(hn::Set(d, 1.0f), Tail(d, Bounded(d, x))));
  }
  template <class D, class V>
  static HWY_INLINE V Backward(D d, V x, V dy) {
    const V one = hn::Set(d, 1.0f);
    const V bounded = Bounded(d, x);
    const V tail = Tail(d, bounded);
    const V s = hn::Div(one, hn::Add(one, tail));
    const V slope = hn::Mul(hn::Set(d, kScale), hn::MulAdd(hn::Set(d, 3 * kCubic), hn::Mul(bounded, bounded), one));
    const V rest = hn::Mul(tail, s);  // 1 - s, without its rounding.
    return hn::Mul(dy, hn::MulAdd(hn::Mul(bounded, slope), hn::Mul(s, rest), s));
  }
};

template <class F>
void ActivateBy(size_t rows, size_t cols, const float* bias, float* x, float* y) {
  for (size_t r = 0; r < rows; ++r, x += cols, y += cols) {
    ForLanes(cols, [&](auto d, size_t c) HWY_ATTR {
      const auto sum = hn::Add(hn::LoadU(d, x + c), hn::LoadU(d, bias + c));
      if (y != x) hn::StoreU(sum, d, x + c);
      hn::StoreU(F::Value(d, sum), d, y + c);
    });
  }
}

template <class F>
void ActivateBackwardBy(size_t n, const float* kept, float* dx) {
  ForLanes(n, [&](auto d, size_t i)
                  HWY_ATTR { hn::StoreU(F::Backward(d, hn::LoadU(d, kept + i), hn::LoadU(d, dx + i)), d, dx + i); });
}

void Activate(Activation activation, size_t rows, size_t cols, const float* bias, float* x, float* y) {
  switch (activation) {
    case Activation::kNone:
      return ActivateBy<None>(rows, cols, bias, x, y);
    case Activation::kRelu:
      return ActivateBy<Relu>(rows, cols, bias, x, y);
    case Activation::kGelu:
      return ActivateBy<Gelu>(rows, cols, bias, x, y);
  }
}

void ActivateBackward(Activation activation, size_t n, const float* kept, float* dx) {
  switch (activation) {
    case Activation::kNone:
      return ActivateBackwardBy<None>(n, kept, dx);
    case Activation::kRelu:
      return ActivateBackwardBy<Relu>(n, kept, dx);
    case Activation::kGelu:
      return ActivateBackwardBy<Gelu>(n, kept, dx);
  }
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

void MultiplyAdd(size_t n, const float* x, const float* y, float* z) {
  ForLanes(n, [&](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, x + i), hn::LoadU(d, y + i), hn::LoadU(d, z + i)), d, z + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace lodestone::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace lodestone::kernels::cpu {
HWY_EXPORT(Activate);
HWY_EXPORT(ActivateBackward);
HWY_EXPORT(DropoutRun);
HWY_EXPORT(ColumnSums);
HWY_EXPORT(Axpy);
HWY_EXPORT(MultiplyAdd);

void Activate(Activation activation, size_t rows, size_t cols, const float* bias, float* x, float* y) {
  HWY_DYNAMIC_DISPATCH(Activate)(activation, rows, cols, bias, x, y);
}

void ActivateBackward(Activation activation, size_t n, const float* kept, float* dx) {
  HWY_DYNAMIC_DISPATCH(ActivateBackward)(activation, n, kept, dx);
}

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

void MultiplyAdd(size_t n, const float* x, const float* y, float* z) { HWY_DYNAMIC_DISPATCH(MultiplyAdd)(n, x, y, z); }

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
