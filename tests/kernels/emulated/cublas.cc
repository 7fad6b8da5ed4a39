// cuBLAS' product, one element after another, and LoadCublas, which finds it. See cublas_v2.h.
#include "kernels/cublas.h"

#include <cstdint>
#include <cstring>

#include "kernels/bf16-inl.h"

namespace {

// A float with 11 bits of mantissa, as TF32 has.
float Tf32(float x) { return lodestone::kernels::FloatOf((lodestone::kernels::BitsOf(x) + 0x1000u) & ~0x1fffu); }

float Element(const void* matrix, cudaDataType type, cublasComputeType_t compute, size_t at) {
  if (type == CUDA_R_16BF) return lodestone::kernels::FloatOfBf16(static_cast<const uint16_t*>(matrix)[at]);
  const float x = static_cast<const float*>(matrix)[at];
  return compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? Tf32(x) : x;
}

// Matrices stand column by column.
cublasStatus_t Gemm(cublasHandle_t, cublasOperation_t transpose_a, cublasOperation_t transpose_b, int m, int n, int k,
                    const void* alpha, const void* a, cudaDataType type_a, int step_a, const void* b,
                    cudaDataType type_b, int step_b, const void* beta, void* c, cudaDataType type_c, int step_c,
                    cublasComputeType_t compute, cublasGemmAlgo_t) {
  const bool steps_fit =
      step_a >= (transpose_a == CUBLAS_OP_N ? m : k) && step_b >= (transpose_b == CUBLAS_OP_N ? k : n) && step_c >= m;
  if (m <= 0 || n <= 0 || k <= 0 || type_a != type_b || type_c != CUDA_R_32F || !steps_fit) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const float scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  float* const to = static_cast<float*>(c);
  for (size_t j = 0; j < static_cast<size_t>(n); ++j) {
    for (size_t i = 0; i < static_cast<size_t>(m); ++i) {
      float sum = 0;
      for (size_t l = 0; l < static_cast<size_t>(k); ++l) {
        const size_t at_a = transpose_a == CUBLAS_OP_N ? i + l * step_a : l + i * step_a;
        const size_t at_b = transpose_b == CUBLAS_OP_N ? l + j * step_b : j + l * step_b;
        sum += Element(a, type_a, compute, at_a) * Element(b, type_b, compute, at_b);
      }
      float& element = to[i + j * step_c];
      element = keep == 0 ? scale * sum : scale * sum + keep * element;
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream_v2(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }
const char* cublasGetStatusString(cublasStatus_t) { return "an error"; }

namespace lodestone::kernels {

absl::StatusOr<Cublas> LoadCublas(const std::string&) {
  Cublas cublas;
  cublas.path = "emulated";
  cublas.create = cublasCreate_v2;
  cublas.destroy = cublasDestroy_v2;
  cublas.set_stream = cublasSetStream_v2;
  cublas.gemm = Gemm;
  cublas.status_string = cublasGetStatusString;
  return cublas;
}

}  // namespace lodestone::kernels
