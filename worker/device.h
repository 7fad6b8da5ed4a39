// The backend that `worker.device` asks for.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "proto/config.pb.h"

namespace lodestone::worker {

// Null: the CPU. INVALID_ARGUMENT if `worker.device` names nothing that there could be; FAILED_PRECONDITION, with the
// reason, if it asks for a CUDA device that is not there. `auto` takes the CPU then, and logs the reason.
absl::StatusOr<std::unique_ptr<kernels::Backend>> OpenDevice(const v1::WorkerConfig& config);

}  // namespace lodestone::worker
