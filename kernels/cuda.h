// CUDA devices as backends. What is here compiles and links everywhere: a build without the toolkit, and a machine
// without a driver or a device, have no devices and say why.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace lodestone::kernels {

// How matrix products round their factors. All add up in float32.
enum class Precision {
  kFloat32,  // Not at all.
  kTf32,     // To 11 bits of mantissa, by the tensor cores.
  kBf16,     // To bf16, 8 bits, by the tensor cores.
};

struct CudaOptions {
  int device = 0;
  Precision precision = Precision::kFloat32;
  // cuBLAS' shared library, or the folder that it is in; empty: where the machine, a toolkit or a Python package has
  // it.
  std::string cublas;
  // Products of so many operations and more, by the tensor cores, are made of copies whose rows begin on boundaries of
  // 16 bytes, if theirs do not (matmul.cu).
  double padded_flops_min = 1 << 30;
};

// How many devices there are, one at least. NOT_FOUND, saying what is missing, if there are none: this build has no
// CUDA, or there is no driver or no device. FAILED_PRECONDITION, saying why, if what is there cannot be used: the
// driver is too old or does not start, or this process may not see the machine's devices.
absl::StatusOr<int> CudaDevices();

// The errors of CudaDevices; NOT_FOUND if there is no such device; FAILED_PRECONDITION if this build has no code for
// it, or if there is no cuBLAS, with the places where it was looked for.
absl::StatusOr<std::unique_ptr<Backend>> CreateCuda(const CudaOptions& options);

}  // namespace lodestone::kernels
