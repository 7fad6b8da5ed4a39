// The formulas are activation.cc's. Elementwise operations move 16 bytes per thread and access where the arrays lie on
// such boundaries. Columns are summed up in two passes of fixed shape, so that equal inputs give equal bits.
#include "kernels/activation.h"
#include "kernels/cuda_launch-inl.h"
#include "kernels/dropout-inl.h"

namespace lodestone::kernels {
namespace {

// x[i] = body(i, x[i], other[i]); `other` is not read if kOther is false.
template <typename Index, bool kOther, typename Body>
__global__ void __launch_bounds__(kBlock) MapKernel(size_t n, bool aligned, const float* other, float* x, Body body) {
  const size_t vectors = aligned ? n / 4 : 0;
  for (size_t v = ThreadIndex(); v < vectors; v += ThreadCount()) {
    float4 value = reinterpret_cast<const float4*>(x)[v];
    float4 by = {};
    if (kOther) by = reinterpret_cast<const float4*>(other)[v];
    const Index i = static_cast<Index>(4 * v);
    value.x = body(i, value.x, by.x);
    value.y = body(i + 1, value.y, by.y);
    value.z = body(i + 2, value.z, by.z);
    value.w = body(i + 3, value.w, by.w);
    reinterpret_cast<float4*>(x)[v] = value;
  }
  for (size_t i = 4 * vectors + ThreadIndex(); i < n; i += ThreadCount()) {
    x[i] = body(static_cast<Index>(i), x[i], kOther ? other[i] : 0.0f);
  }
}

template <bool kOther, typename Body>
void Map(CudaBackend* backend, const char* operation, std::initializer_list<size_t> shape, size_t n, const float* other,
         float* x, const Body& body) {
  const bool aligned = (reinterpret_cast<uintptr_t>(x) | (kOther ? reinterpret_cast<uintptr_t>(other) : 0)) % 16 == 0;
  const Grid grid = GridFor(aligned ? n / 4 + n % 4 : n);
  if (n <= UINT32_MAX) {
    Launch(backend, operation, shape, grid, MapKernel<uint32_t, kOther, Body>, n, aligned, other, x, body);
  } else {
    Launch(backend, operation, shape, grid, MapKernel<uint64_t, kOther, Body>, n, aligned, other, x, body);
  }
}

// Each activation: its value at x, and its derivative from what the backward pass keeps of it.
struct None {
  static __device__ float Value(float x) { return x; }
  static __device__ float Backward(float, float dy) { return dy; }
};

struct Relu {
  static __device__ float Value(float x) { return x < 0.0f ? 0.0f : x; }  // Not fmaxf, which would turn NaN into 0.
  static __device__ float Backward(float y, float dy) { return y > 0.0f ? dy : 0.0f; }
};

struct Gelu {
  static constexpr float kScale = 1.5957691216f;  // 2 sqrt(2 / pi)
  static constexpr float kCubic = 0.044715f;
  static constexpr float kBound = 10.0f;  // s is 0 or 1 beyond it, to 1e-37, and e^-t finite within.

  static __device__ float AtLeast(float x) { return x < -kBound ? -kBound : x; }  // Keeps NaN.
  static __device__ float Bounded(float x) { return AtLeast(x < kBound ? x : kBound); }
  // e^-t.
  static __device__ float Tail(float bounded) {
    return expf(-kScale * fmaf(kCubic * (bounded * bounded), bounded, bounded));
  }
  static __device__ float Value(float x) { return AtLeast(x) / (1.0f + Tail(Bounded(x))); }
  static __device__ float Backward(float x, float dy) {
    const float bounded = Bounded(x);
    const float tail = Tail(bounded);
    const float s = 1.0f / (1.0f + tail);
    const float slope = kScale * fmaf(3 * kCubic, bounded * bounded, 1.0f);
    return dy * fmaf(bounded * slope, s * (tail * s), s);  // tail * s is 1 - s, without its rounding.
  }
};

// In place.
template <class F>
struct ActivateBody {
  size_t cols;
  const float* bias;
  template <typename Index>
  __device__ float operator()(Index i, float x, float) const {
    return F::Value(x + bias[i % static_cast<Index>(cols)]);
  }
};

// Beside the sums.
template <class F>
struct ActivateFromBody {
  template <typename Index>
  __device__ float operator()(Index, float, float x) const {
    return F::Value(x);
  }
};

template <class F>
struct ActivateBackwardBody {
  template <typename Index>
  __device__ float operator()(Index, float dx, float kept) const {
    return F::Backward(kept, dx);
  }
};

// Calls body(F()) with the activation F.
template <typename Body>
void With(Activation activation, const Body& body) {
  switch (activation) {
    case Activation::kNone:
      return body(None());
    case Activation::kRelu:
      return body(Relu());
    case Activation::kGelu:
      return body(Gelu());
  }
}

struct AxpyBody {
  float alpha;
  template <typename Index>
  __device__ float operator()(Index, float y, float x) const {
    return fmaf(alpha, x, y);
  }
};

__device__ inline uint32_t Mix(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  x = (x ^ (x >> 15)) * 0xd35a2d97u;
  return x ^ (x >> 15);
}

struct DropoutBody {
  DropoutFate fate;
  template <typename Index>
  __device__ float operator()(Index i, float x, float) const {
    const uint32_t hash = Mix(Mix(static_cast<uint32_t>(i) ^ fate.key0) + fate.key1);
    return hash < fate.threshold ? 0.0f : x * fate.scale;
  }
};

struct MultiplyAddBody {
  const float* x;
  const float* y;
  float* z;
  template <typename Index>
  __device__ void operator()(Index i) const {
    z[i] = fmaf(x[i], y[i], z[i]);
  }
};

struct CopyColumnsBody {
  size_t cols, stride, col;
  const float* x;
  float* y;
  template <typename Index>
  __device__ void operator()(Index i) const {
    const Index r = i / static_cast<Index>(cols);
    y[r * stride + col + (i - r * static_cast<Index>(cols))] = x[i];
  }
};

struct ExtractColumnsBody {
  size_t cols, stride, col;
  const float* x;
  float* y;
  template <typename Index>
  __device__ void operator()(Index i) const {
    const Index r = i / static_cast<Index>(cols);
    y[i] = x[r * stride + col + (i - r * static_cast<Index>(cols))];
  }
};

// Sums columns over parts of the rows: to[part, c]. Threads stand as [lanes of rows][columns], `columns` <= 32 of them
// abreast; a block's columns are one group, of which there are `groups`.
__global__ void __launch_bounds__(kBlock) ColumnSumsKernel(size_t rows, size_t cols, size_t rows_per_part,
                                                           unsigned columns, size_t groups, const float* x, float* to) {
  __shared__ float sums[kBlock];
  const unsigned lanes = kBlock / columns;
  const unsigned column = threadIdx.x % columns, lane = threadIdx.x / columns;
  const size_t part = blockIdx.x / groups;
  const size_t c = blockIdx.x % groups * columns + column;
  const size_t begin = part * rows_per_part;
  const size_t end = begin + rows_per_part < rows ? begin + rows_per_part : rows;
  float sum = 0.0f;
  if (lane < lanes && c < cols) {
#pragma unroll 4
    for (size_t r = begin + lane; r < end; r += lanes) sum += x[r * cols + c];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (lane == 0 && c < cols) {
    for (unsigned l = 1; l < lanes; ++l) sum += sums[l * columns + column];
    to[part * cols + c] = sum;
  }
}

struct AddPartsBody {
  size_t parts, cols;
  const float* partial;
  float* sums;
  template <typename Index>
  __device__ void operator()(Index c) const {
    float sum = 0.0f;
    for (size_t part = 0; part < parts; ++part) sum += partial[part * cols + c];
    sums[c] = sum;
  }
};

}  // namespace

void CudaBackend::Activate(Activation activation, size_t rows, size_t cols, const float* bias, float* x, float* y) {
  const size_t n = rows * cols;
  if (y != x) {
    Map<false>(this, "Activate", {rows, cols}, n, nullptr, x, ActivateBody<None>{cols, bias});
    With(activation, [&](auto f) {
      Map<true>(this, "Activate", {rows, cols}, n, x, y, ActivateFromBody<decltype(f)>{});
    });
    return;
  }
  With(activation, [&](auto f) {
    Map<false>(this, "Activate", {rows, cols}, n, nullptr, x, ActivateBody<decltype(f)>{cols, bias});
  });
}

void CudaBackend::ActivateBackward(Activation activation, size_t n, const float* kept, float* dx) {
  With(activation,
       [&](auto f) { Map<true>(this, "ActivateBackward", {n}, n, kept, dx, ActivateBackwardBody<decltype(f)>{}); });
}

void CudaBackend::Dropout(size_t n, float rate, uint64_t seed, float* x) {
  if (rate <= 0.0f) return;
  if (rate >= 1.0f) return Fill(n, 0.0f, x);
  for (uint64_t begin = 0; begin < n; begin += kDropoutRun) {
    Map<false>(this, "Dropout", {n}, std::min<uint64_t>(kDropoutRun, n - begin), nullptr, x + begin,
               DropoutBody{FateOf(rate, seed, begin / kDropoutRun)});
  }
}

void CudaBackend::ColumnSums(size_t rows, size_t cols, const float* x, float* sums) {
  if (cols == 0) return;
  constexpr size_t kColumnsMax = 32;
  constexpr size_t kRowsPerThread = 16;  // At least, where there are several parts.
  constexpr size_t kPartsMax = 256;
  const size_t columns = std::min(cols, kColumnsMax);
  const size_t groups = (cols + columns - 1) / columns;
  const size_t parts = std::clamp<size_t>(rows / (kBlock / columns * kRowsPerThread), 1, kPartsMax);
  const size_t rows_per_part = (rows + parts - 1) / parts;
  float* to = sums;
  if (parts > 1) {
    to = static_cast<float*>(ScratchOf(Scratch::kReduction, parts * cols * sizeof(float)));
    if (to == nullptr) return;
  }
  Launch(this, "ColumnSums", {rows, cols}, {groups * parts, kBlock, 0}, ColumnSumsKernel, rows, cols, rows_per_part,
         static_cast<unsigned>(columns), groups, x, to);
  if (parts > 1) ForEach(this, "ColumnSums", {rows, cols}, cols, AddPartsBody{parts, cols, to, sums});
}

void CudaBackend::Axpy(size_t n, float alpha, const float* x, float* y) {
  Map<true>(this, "Axpy", {n}, n, x, y, AxpyBody{alpha});
}

void CudaBackend::MultiplyAdd(size_t n, const float* x, const float* y, float* z) {
  ForEach(this, "MultiplyAdd", {n}, n, MultiplyAddBody{x, y, z});
}

void CudaBackend::CopyColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y) {
  ForEach(this, "CopyColumns", {rows, cols, stride}, rows * cols, CopyColumnsBody{cols, stride, col, x, y});
}

void CudaBackend::ExtractColumns(size_t rows, size_t cols, const float* x, size_t stride, size_t col, float* y) {
  ForEach(this, "ExtractColumns", {rows, cols, stride}, rows * cols, ExtractColumnsBody{cols, stride, col, x, y});
}

}  // namespace lodestone::kernels
