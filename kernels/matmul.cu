// c[i, j] = alpha * sum over l of op(a)[i, l] * op(b)[l, j] + beta * c[i, j], by cuBLAS, which takes columns for rows:
// what it computes is the transposed product, c' = op(b)' op(a)', of the transposed matrices, which are the same bytes.
//
// Tensor cores want rows that begin on boundaries of 16 bytes: a product of 16384 x 429 by 429 x 1024 takes 2.2 times
// as long in TF32 as one of 432 (4.1 in bf16; H200, cuBLAS 13.0). So large products of such sizes are made of copies
// with zeros behind each row, which bf16 needs copies for anyway.
#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "kernels/bf16-inl.h"
#include "kernels/cuda_launch-inl.h"
#include "kernels/linear_factors.h"
#include "kernels/matmul.h"

namespace lodestone::kernels {
namespace {

struct ScaleBody {
  float beta;
  float* c;
  template <typename Index>
  __device__ void operator()(Index i) const {
    c[i] *= beta;
  }
};

// A row-major matrix.
struct Shape {
  size_t rows = 0;
  size_t cols = 0;
};

__device__ inline void Store(const float* from, float* to) {
  *reinterpret_cast<float4*>(to) = {from[0], from[1], from[2], from[3]};
}
__device__ inline void Store(const float* from, uint16_t* to) {
  *reinterpret_cast<uint2*>(to) = {Bf16Of(from[0]) | static_cast<uint32_t>(Bf16Of(from[1])) << 16,
                                   Bf16Of(from[2]) | static_cast<uint32_t>(Bf16Of(from[3])) << 16};
}

// Four elements, `i` counting them so, of y, which has x at its beginning and zeros behind its rows and columns.
template <typename Element>
struct PaddedCopyBody {
  const float* x;
  size_t rows, cols;
  bool aligned;  // Four elements of a row of x can be loaded at once.
  Element* y;
  size_t fours;  // Columns of y, divided by 4.
  template <typename Index>
  __device__ void operator()(Index i) const {
    const Index row = i / static_cast<Index>(fours), col = i % static_cast<Index>(fours) * 4;
    float four[4] = {0, 0, 0, 0};
    if (row < rows) {
      const float* const from = x + static_cast<size_t>(row) * cols + col;
      if (aligned && col + 4 <= cols) {
        const float4 loaded = *reinterpret_cast<const float4*>(from);
        four[0] = loaded.x, four[1] = loaded.y, four[2] = loaded.z, four[3] = loaded.w;
      } else {
        for (size_t e = 0; e < 4 && col + e < cols; ++e) four[e] = from[e];
      }
    }
    Store(four, y + static_cast<size_t>(i) * 4);
  }
};

constexpr size_t kAlignment = 256;
// Where factors are copied anyway, an aligned result, which has to be copied back, pays from this share of
// CudaOptions::padded_flops_min on.
constexpr double kPaddedResultShare = 0.25;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

// The places of arrays in scratch memory.
class Places {
 public:
  size_t Take(size_t bytes) {
    const size_t at = bytes_;
    bytes_ += RoundUp(bytes, kAlignment);
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

}  // namespace

// How a product is computed: from which copies of its factors, if any, and into what.
struct CudaBackend::Product {
  bool transpose_a = false, transpose_b = false;
  size_t m = 0, n = 0, k = 0;
  size_t padded_m = 0, padded_n = 0, padded_k = 0;  // Of what cuBLAS computes.
  bool small = false;                               // Copies are of 2 bytes an element.
  Shape from_a, from_b;                             // The factors, and
  Shape to_a, to_b;                                 // their copies.
  bool copies_a = false, copies_b = false;

  bool result_apart() const { return padded_m != m || padded_n != n; }
  size_t BytesOfA() const { return BytesOf(copies_a, to_a); }
  size_t BytesOfB() const { return BytesOf(copies_b, to_b); }
  size_t BytesOfResult() const { return result_apart() ? padded_m * padded_n * sizeof(float) : 0; }

 private:
  size_t BytesOf(bool copies, const Shape& to) const {
    return copies ? to.rows * to.cols * (small ? sizeof(uint16_t) : sizeof(float)) : 0;
  }
};

CudaBackend::Product CudaBackend::PlanProduct(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k,
                                              float beta) const {
  Product p{transpose_a, transpose_b, m, n, k};
  p.small = options_.precision == Precision::kBf16;
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  // Of the product that is computed, sizes are multiples of this.
  const size_t multiple = p.small ? 8 : 4;
  const bool pads = options_.precision != Precision::kFloat32 && (p.small || flops >= options_.padded_flops_min);
  const bool pads_result = pads && beta == 0.0f && flops >= kPaddedResultShare * options_.padded_flops_min;
  const bool inner_k = !transpose_a || transpose_b;  // Whether a factor's rows lie along k.
  p.padded_k = pads && inner_k ? RoundUp(k, multiple) : k;
  p.padded_m = pads_result && transpose_a ? RoundUp(m, multiple) : m;
  p.padded_n = pads_result ? RoundUp(n, multiple) : n;
  p.from_a = transpose_a ? Shape{k, m} : Shape{m, k};
  p.from_b = transpose_b ? Shape{n, k} : Shape{k, n};
  p.to_a = transpose_a ? Shape{p.padded_k, p.padded_m} : Shape{p.padded_m, p.padded_k};
  p.to_b = transpose_b ? Shape{p.padded_n, p.padded_k} : Shape{p.padded_k, p.padded_n};
  // Rows of a copy begin on such boundaries in any case.
  const auto needs_copy = [&](const Shape& from, Shape* to) {
    if (!pads) return false;
    to->cols = RoundUp(to->cols, multiple);
    return p.small || from.rows != to->rows || from.cols != to->cols;
  };
  p.copies_a = needs_copy(p.from_a, &p.to_a);
  p.copies_b = needs_copy(p.from_b, &p.to_b);
  return p;
}

void CudaBackend::CopyFactor(const Product& p, bool of_a, const float* factor, void* copy) {
  const Shape& from = of_a ? p.from_a : p.from_b;
  const Shape& to = of_a ? p.to_a : p.to_b;
  const bool aligned = from.cols % 4 == 0 && reinterpret_cast<uintptr_t>(factor) % sizeof(float4) == 0;
  const size_t fours = to.rows * to.cols / 4;
  if (p.small) {
    ForEach(this, "MatMul", {p.m, p.n, p.k}, fours,
            PaddedCopyBody<uint16_t>{factor, from.rows, from.cols, aligned, static_cast<uint16_t*>(copy), to.cols / 4});
  } else {
    ForEach(this, "MatMul", {p.m, p.n, p.k}, fours,
            PaddedCopyBody<float>{factor, from.rows, from.cols, aligned, static_cast<float*>(copy), to.cols / 4});
  }
}

void CudaBackend::Multiply(const Product& p, float alpha, const void* a, const void* b, float beta, float* result,
                           float* c) {
  if (!Ready()) return;
  newest_ = "MatMul";
  const cudaDataType type = p.small ? CUDA_R_16BF : CUDA_R_32F;
  const cublasComputeType_t compute =
      options_.precision == Precision::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  const cublasStatus_t status =
      cublas_.gemm(handle_, p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                   static_cast<int>(p.padded_n), static_cast<int>(p.padded_m), static_cast<int>(p.padded_k), &alpha, b,
                   type, static_cast<int>(p.copies_b ? p.to_b.cols : p.from_b.cols), a, type,
                   static_cast<int>(p.copies_a ? p.to_a.cols : p.from_a.cols), &beta, result, CUDA_R_32F,
                   static_cast<int>(p.padded_n), compute, CUBLAS_GEMM_DEFAULT);
  if (status != CUBLAS_STATUS_SUCCESS) {
    Fail(absl::StrCat("MatMul [", p.m, ", ", p.n, ", ", p.k, "]: cuBLAS: ", cublas_.status_string(status)));
  }
  if (result != c) ExtractColumns(p.m, p.n, result, p.padded_n, 0, c);
}

void CudaBackend::MatMul(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha, const float* a,
                         const float* b, float beta, float* c) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (beta == 0.0f) return Fill(m * n, 0.0f, c);
    return ForEach(this, "MatMul", {m, n, k}, m * n, ScaleBody{beta, c});
  }
  const Product p = PlanProduct(transpose_a, transpose_b, m, n, k, beta);
  Places places;
  const size_t at_a = places.Take(p.BytesOfA()), at_b = places.Take(p.BytesOfB());
  const size_t at_c = places.Take(p.BytesOfResult());
  char* const scratch = places.bytes() > 0 ? static_cast<char*>(ScratchOf(Scratch::kProduct, places.bytes())) : nullptr;
  if (places.bytes() > 0 && scratch == nullptr) return;
  if (p.copies_a) CopyFactor(p, /*of_a=*/true, a, scratch + at_a);
  if (p.copies_b) CopyFactor(p, /*of_a=*/false, b, scratch + at_b);
  Multiply(p, alpha, p.copies_a ? scratch + at_a : static_cast<const void*>(a),
           p.copies_b ? scratch + at_b : static_cast<const void*>(b), beta,
           p.result_apart() ? reinterpret_cast<float*>(scratch + at_c) : c, c);
}

void CudaBackend::Linear(size_t rows, size_t in, size_t out, const float* x, const float* w, float* y,
                         LinearFactors* factors) {
  if (rows == 0 || in == 0 || out == 0) return MatMul(false, false, rows, out, in, 1, x, w, 0, y);
  const Product p = PlanProduct(false, false, rows, out, in, 0);
  void* const copy_x = factors->x.Resize(p.BytesOfA());
  void* const copy_w = factors->w.Resize(p.BytesOfB());
  void* const result = p.result_apart() ? ScratchOf(Scratch::kProduct, p.BytesOfResult()) : y;
  if ((p.copies_a && copy_x == nullptr) || (p.copies_b && copy_w == nullptr) || result == nullptr) return;
  if (p.copies_a) CopyFactor(p, /*of_a=*/true, x, copy_x);
  if (p.copies_b) CopyFactor(p, /*of_a=*/false, w, copy_w);
  Multiply(p, 1, p.copies_a ? copy_x : x, p.copies_b ? copy_w : w, 0, static_cast<float*>(result), y);
}

// The three products of a layer have the same sizes in another order, so that they are padded alike: a copy of Linear's
// has the rows that these two take, and at least as many. dy is copied once for both.
void CudaBackend::LinearBackward(size_t rows, size_t in, size_t out, const float* x, const float* w, const float* dy,
                                 const LinearFactors& factors, float* dw, float* dx, float dx_beta) {
  if (rows == 0 || in == 0 || out == 0) {
    MatMul(true, false, in, out, rows, 1, x, dy, 0, dw);
    if (dx != nullptr) MatMul(false, true, rows, in, out, 1, dy, w, dx_beta, dx);
    return;
  }
  const Product of_w = PlanProduct(true, false, in, out, rows, 0);
  const Product of_x = PlanProduct(false, true, rows, in, out, dx_beta);
  Places places;
  const size_t at_dy = places.Take(of_w.BytesOfB());
  const size_t at_result = places.Take(std::max(of_w.BytesOfResult(), of_x.BytesOfResult()));
  char* const scratch = places.bytes() > 0 ? static_cast<char*>(ScratchOf(Scratch::kProduct, places.bytes())) : nullptr;
  if (places.bytes() > 0 && scratch == nullptr) return;
  if (of_w.copies_b) CopyFactor(of_w, /*of_a=*/false, dy, scratch + at_dy);
  const void* const copied_dy = of_w.copies_b ? scratch + at_dy : static_cast<const void*>(dy);
  float* const apart = reinterpret_cast<float*>(scratch + at_result);
  Multiply(of_w, 1, of_w.copies_a ? factors.x.data() : static_cast<const void*>(x), copied_dy, 0,
           of_w.result_apart() ? apart : dw, dw);
  if (dx == nullptr) return;
  Multiply(of_x, 1, copied_dy, of_x.copies_b ? factors.w.data() : static_cast<const void*>(w), dx_beta,
           of_x.result_apart() ? apart : dx, dx);
}

}  // namespace lodestone::kernels
