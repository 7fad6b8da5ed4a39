// The backend that `worker.device` asks for.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "proto/config.pb.h"

namespace lodestone::worker {

// Null: the CPU. `index` is the worker's: `cuda` and `auto` take, of the machine's devices, the one with this number,
// modulo how many there are. INVALID_ARGUMENT if `worker.device` names nothing that there could be;
// FAILED_PRECONDITION, with the reason, if it asks for a CUDA device that cannot be had. `auto` takes the CPU then and
// logs the reason, as a warning if there is a device or a driver.
absl::StatusOr<std::unique_ptr<kernels::Backend>> OpenDevice(const v1::WorkerConfig& config, uint32_t index);

}  // namespace lodestone::worker
