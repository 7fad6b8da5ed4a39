// cuBLAS' product, one element after another, and LoadCublas, which finds it. See cublas_v2.h.
#include "kernels/cublas.h"

#include <cstdint>

#include "kernels/bf16-inl.h"

struct EmulatedHandle {
  cudaStream_t stream = nullptr;
};

namespace {

// A float with 11 bits of mantissa, as TF32 has.
float Tf32(float x) { return lodestone::kernels::FloatOf((lodestone::kernels::BitsOf(x) + 0x1000u) & ~0x1fffu); }

float Element(const void* matrix, cudaDataType type, cublasComputeType_t compute, size_t at) {
  if (type == CUDA_R_16BF) return lodestone::kernels::FloatOfBf16(static_cast<const uint16_t*>(matrix)[at]);
  const float x = static_cast<const float*>(matrix)[at];
  return compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? Tf32(x) : x;
}

struct Product {
  bool transpose_a, transpose_b;
  size_t m, n, k;
  float alpha;
  const void* a;
  size_t step_a;
  const void* b;
  size_t step_b;
  float beta;
  float* c;
  size_t step_c;
  cudaDataType type;
  cublasComputeType_t compute;

  void Run() const {
    for (size_t j = 0; j < n; ++j) {
      for (size_t i = 0; i < m; ++i) {
        float sum = 0;
        for (size_t l = 0; l < k; ++l) {
          const size_t at_a = transpose_a ? l + i * step_a : i + l * step_a;
          const size_t at_b = transpose_b ? j + l * step_b : l + j * step_b;
          sum += Element(a, type, compute, at_a) * Element(b, type, compute, at_b);
        }
        float& element = c[i + j * step_c];
        element = beta == 0 ? alpha * sum : alpha * sum + beta * element;
      }
    }
  }
};

// The bytes of a matrix, up to its last element.
size_t BytesOf(size_t rows, size_t columns, size_t step, cudaDataType type) {
  return ((columns - 1) * step + rows) * (type == CUDA_R_16BF ? sizeof(uint16_t) : sizeof(float));
}

// Matrices stand column by column.
cublasStatus_t Gemm(cublasHandle_t handle, cublasOperation_t transpose_a, cublasOperation_t transpose_b, int m, int n,
                    int k, const void* alpha, const void* a, cudaDataType type_a, int step_a, const void* b,
                    cudaDataType type_b, int step_b, const void* beta, void* c, cudaDataType type_c, int step_c,
                    cublasComputeType_t compute, cublasGemmAlgo_t) {
  const bool steps_fit =
      step_a >= (transpose_a == CUBLAS_OP_N ? m : k) && step_b >= (transpose_b == CUBLAS_OP_N ? k : n) && step_c >= m;
  if (m <= 0 || n <= 0 || k <= 0 || type_a != type_b || type_c != CUDA_R_32F || !steps_fit) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const Product product = {transpose_a == CUBLAS_OP_T,
                           transpose_b == CUBLAS_OP_T,
                           static_cast<size_t>(m),
                           static_cast<size_t>(n),
                           static_cast<size_t>(k),
                           *static_cast<const float*>(alpha),  // The host's, read before the call returns.
                           a,
                           static_cast<size_t>(step_a),
                           b,
                           static_cast<size_t>(step_b),
                           *static_cast<const float*>(beta),
                           static_cast<float*>(c),
                           static_cast<size_t>(step_c),
                           type_a,
                           compute};
  const cudaError_t error =
      emulated::Start(handle->stream,
                      {{a, product.transpose_a ? BytesOf(k, m, step_a, type_a) : BytesOf(m, k, step_a, type_a)},
                       {b, product.transpose_b ? BytesOf(n, k, step_b, type_b) : BytesOf(k, n, step_b, type_b)},
                       {c, BytesOf(m, n, step_c, type_c)}},
                      [product] { product.Run(); });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = new EmulatedHandle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
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
