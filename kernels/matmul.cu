// c[i, j] = alpha * sum over l of op(a)[i, l] * op(b)[l, j] + beta * c[i, j], by cuBLAS, which takes columns for rows:
// what it computes is the transposed product, c' = op(b)' op(a)', of the transposed matrices, which are the same bytes.
//
// Tensor cores want rows that begin on boundaries of 16 bytes: a product of 16384 x 429 by 429 x 1024 takes 2.2 times
// as long in TF32 as one of 432 (4.1 in bf16; H200, cuBLAS 13.0). So large products of such sizes are made of copies
// with zeros behind each row, which bf16 needs copies for anyway.
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "kernels/bf16-inl.h"
#include "kernels/cuda_launch-inl.h"
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

}  // namespace

void CudaBackend::MatMul(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha, const float* a,
                         const float* b, float beta, float* c) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (beta == 0.0f) return Fill(m * n, 0.0f, c);
    return ForEach(this, "MatMul", {m, n, k}, m * n, ScaleBody{beta, c});
  }
  const bool small = options_.precision == Precision::kBf16;  // Factors are of 2 bytes.
  const double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  // Of the product that is computed, sizes are multiples of this.
  const size_t multiple = small ? 8 : 4;
  const bool pads = options_.precision != Precision::kFloat32 && (small || flops >= options_.padded_flops_min);
  const bool pads_result = pads && beta == 0.0f && flops >= kPaddedResultShare * options_.padded_flops_min;
  const bool inner_k = !transpose_a || transpose_b;  // Whether a factor's rows lie along k.
  const size_t padded_k = pads && inner_k ? RoundUp(k, multiple) : k;
  const size_t padded_m = pads_result && transpose_a ? RoundUp(m, multiple) : m;
  const size_t padded_n = pads_result ? RoundUp(n, multiple) : n;
  const bool result_apart = padded_m != m || padded_n != n;

  const Shape from_a = transpose_a ? Shape{k, m} : Shape{m, k}, from_b = transpose_b ? Shape{n, k} : Shape{k, n};
  Shape to_a = transpose_a ? Shape{padded_k, padded_m} : Shape{padded_m, padded_k};
  Shape to_b = transpose_b ? Shape{padded_n, padded_k} : Shape{padded_k, padded_n};
  const size_t bytes = small ? sizeof(uint16_t) : sizeof(float);
  size_t scratch_bytes = 0;
  // Where a copy begins in the scratch memory.
  const auto place = [&scratch_bytes](const Shape& shape, size_t element_bytes) {
    const size_t at = scratch_bytes;
    scratch_bytes += RoundUp(shape.rows * shape.cols * element_bytes, kAlignment);
    return at;
  };
  // Rows of a copy begin on such boundaries in any case.
  const auto needs_copy = [&](const Shape& from, Shape* to) {
    if (!pads) return false;
    to->cols = RoundUp(to->cols, multiple);
    return small || from.rows != to->rows || from.cols != to->cols;
  };
  const bool copies_a = needs_copy(from_a, &to_a), copies_b = needs_copy(from_b, &to_b);
  const size_t at_a = copies_a ? place(to_a, bytes) : 0, at_b = copies_b ? place(to_b, bytes) : 0;
  const size_t at_c = result_apart ? place({padded_m, padded_n}, sizeof(float)) : 0;
  char* const scratch = scratch_bytes > 0 ? static_cast<char*>(ScratchOf(Scratch::kProduct, scratch_bytes)) : nullptr;
  if (scratch_bytes > 0 && scratch == nullptr) return;
  const auto copied = [&](const float* x, const Shape& from, const Shape& to, size_t at) -> const void* {
    const bool aligned = from.cols % 4 == 0 && reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0;
    const size_t fours = to.rows * to.cols / 4;
    if (small) {
      ForEach(this, "MatMul", {m, n, k}, fours,
              PaddedCopyBody<uint16_t>{x, from.rows, from.cols, aligned, reinterpret_cast<uint16_t*>(scratch + at),
                                       to.cols / 4});
    } else {
      ForEach(
          this, "MatMul", {m, n, k}, fours,
          PaddedCopyBody<float>{x, from.rows, from.cols, aligned, reinterpret_cast<float*>(scratch + at), to.cols / 4});
    }
    return scratch + at;
  };
  const void* const factor_a = copies_a ? copied(a, from_a, to_a, at_a) : a;
  const void* const factor_b = copies_b ? copied(b, from_b, to_b, at_b) : b;
  float* const result = result_apart ? reinterpret_cast<float*>(scratch + at_c) : c;
  if (!Ready()) return;
  newest_ = "MatMul";
  const cudaDataType type = small ? CUDA_R_16BF : CUDA_R_32F;
  const cublasComputeType_t compute =
      options_.precision == Precision::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  const cublasStatus_t status =
      cublas_.gemm(handle_, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                   static_cast<int>(padded_n), static_cast<int>(padded_m), static_cast<int>(padded_k), &alpha, factor_b,
                   type, static_cast<int>(copies_b ? to_b.cols : from_b.cols), factor_a, type,
                   static_cast<int>(copies_a ? to_a.cols : from_a.cols), &beta, result, CUDA_R_32F,
                   static_cast<int>(padded_n), compute, CUBLAS_GEMM_DEFAULT);
  if (status != CUBLAS_STATUS_SUCCESS) {
    Fail(absl::StrCat("MatMul [", m, ", ", n, ", ", k, "]: cuBLAS: ", cublas_.status_string(status)));
  }
  if (result_apart) ExtractColumns(m, n, result, padded_n, 0, c);
}

}  // namespace lodestone::kernels
