// The functions of cuBLAS that are used here, found at run time: programs start where there is none, and half a
// gigabyte need not be carried.
#pragma once

#include <cublas_v2.h>

#include <string>

#include "absl/status/statusor.h"

namespace lodestone::kernels {

struct Cublas {
  std::string path;  // Of the library.
  decltype(&::cublasCreate_v2) create = nullptr;
  decltype(&::cublasDestroy_v2) destroy = nullptr;
  decltype(&::cublasSetStream_v2) set_stream = nullptr;
  // Spelled out, since the header has two of the name.
  cublasStatus_t (*gemm)(cublasHandle_t handle, cublasOperation_t transpose_a, cublasOperation_t transpose_b, int m,
                         int n, int k, const void* alpha, const void* a, cudaDataType type_a, int step_a, const void* b,
                         cudaDataType type_b, int step_b, const void* beta, void* c, cudaDataType type_c, int step_c,
                         cublasComputeType_t compute, cublasGemmAlgo_t algorithm) = nullptr;
  decltype(&::cublasGetStatusString) status_string = nullptr;
};

// `where` is CudaOptions::cublas. The library stays loaded. FAILED_PRECONDITION, with all places, if it is nowhere.
absl::StatusOr<Cublas> LoadCublas(const std::string& where);

}  // namespace lodestone::kernels
