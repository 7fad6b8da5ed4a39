// c[i, j] = alpha * sum over l of op(a)[i, l] * op(b)[l, j] + beta * c[i, j], by cuBLAS, which takes columns for rows:
// what it computes is the transposed product, c' = op(b)' op(a)', of the transposed matrices, which are the same bytes.
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

struct ToBf16Body {
  const float* x;
  uint16_t* y;
  template <typename Index>
  __device__ void operator()(Index i) const {
    y[i] = Bf16Of(x[i]);
  }
};

constexpr size_t kAlignment = 256;

}  // namespace

void CudaBackend::MatMul(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha, const float* a,
                         const float* b, float beta, float* c) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (beta == 0.0f) return Fill(m * n, 0.0f, c);
    return ForEach(this, "MatMul", {m, n, k}, m * n, ScaleBody{beta, c});
  }
  const void* factor_a = a;
  const void* factor_b = b;
  cudaDataType type = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  switch (options_.precision) {
    case Precision::kFloat32:
      break;
    case Precision::kTf32:
      compute = CUBLAS_COMPUTE_32F_FAST_TF32;
      break;
    case Precision::kBf16: {
      const size_t bytes_a = (m * k * sizeof(uint16_t) + kAlignment - 1) / kAlignment * kAlignment;
      char* const scratch = static_cast<char*>(ScratchOf(Scratch::kProduct, bytes_a + k * n * sizeof(uint16_t)));
      if (scratch == nullptr) return;
      uint16_t* const small_a = reinterpret_cast<uint16_t*>(scratch);
      uint16_t* const small_b = reinterpret_cast<uint16_t*>(scratch + bytes_a);
      ForEach(this, "MatMul", {m, n, k}, m * k, ToBf16Body{a, small_a});
      ForEach(this, "MatMul", {m, n, k}, k * n, ToBf16Body{b, small_b});
      factor_a = small_a;
      factor_b = small_b;
      type = CUDA_R_16BF;
    }
  }
  if (!Ready()) return;
  newest_ = "MatMul";
  const cublasStatus_t status =
      cublas_.gemm(handle_, transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                   static_cast<int>(n), static_cast<int>(m), static_cast<int>(k), &alpha, factor_b, type,
                   static_cast<int>(transpose_b ? k : n), factor_a, type, static_cast<int>(transpose_a ? m : k), &beta,
                   c, CUDA_R_32F, static_cast<int>(n), compute, CUBLAS_GEMM_DEFAULT);
  if (status != CUBLAS_STATUS_SUCCESS) {
    Fail(absl::StrCat("MatMul [", m, ", ", n, ", ", k, "]: cuBLAS: ", cublas_.status_string(status)));
  }
}

}  // namespace lodestone::kernels
