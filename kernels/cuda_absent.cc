// What takes the place of the CUDA backend in a build without the toolkit.
#include "absl/status/status.h"
#include "kernels/cuda.h"

namespace lodestone::kernels {

absl::StatusOr<int> CudaDevices() {
  return absl::NotFoundError(
      "this program was built without CUDA: the machine that built it had no CUDA toolkit of version 12 or later "
      "(kernels/README.md)");
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCuda(const CudaOptions&) { return CudaDevices().status(); }

}  // namespace lodestone::kernels
