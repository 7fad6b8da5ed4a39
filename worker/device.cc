#include "worker/device.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/config/device_name.h"
#include "common/telemetry/log.h"
#include "kernels/cuda.h"

namespace lodestone::worker {
namespace {

kernels::Precision PrecisionOf(v1::WorkerConfig::Precision precision) {
  switch (precision) {
    case v1::WorkerConfig::TF32:
      return kernels::Precision::kTf32;
    case v1::WorkerConfig::BF16:
      return kernels::Precision::kBf16;
    case v1::WorkerConfig::F32:
      break;
  }
  return kernels::Precision::kFloat32;
}

}  // namespace

absl::StatusOr<std::unique_ptr<kernels::Backend>> OpenDevice(const v1::WorkerConfig& config, uint32_t index) {
  const std::string& device = config.device();
  const absl::StatusOr<DeviceName> name = ParseDeviceName(device);
  if (!name.ok()) return Annotate(name.status(), "worker.device");
  if (name->kind == DeviceName::Kind::kCpu) return std::unique_ptr<kernels::Backend>();
  kernels::CudaOptions options;
  options.precision = PrecisionOf(config.precision());
  options.cublas = config.cublas();
  if (name->number.has_value()) {
    options.device = *name->number;
  } else if (const absl::StatusOr<int> devices = kernels::CudaDevices(); devices.ok()) {
    options.device = static_cast<int>(index % static_cast<uint32_t>(*devices));
  }
  auto backend = kernels::CreateCuda(options);
  if (backend.ok()) {
    LODESTONE_LOG(INFO, "worker", "computing device={}", (*backend)->name());
    return backend;
  }
  if (device == "auto") {
    const std::string reason(backend.status().message());
    if (absl::IsNotFound(backend.status())) {
      LODESTONE_LOG(INFO, "worker", "computing device=cpu reason={}", reason);
    } else {
      LODESTONE_LOG(WARN, "worker", "there is CUDA here that cannot be used; computing device=cpu reason={}", reason);
    }
    return std::unique_ptr<kernels::Backend>();
  }
  return absl::FailedPreconditionError(absl::StrCat("worker.device is ", device, ", but ", backend.status().message()));
}

}  // namespace lodestone::worker
