// The status of a ps, asked for without joining its cluster.
//
// Thread safety: a pure function.
#pragma once

#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "proto/config.pb.h"

namespace lodestone::worker {

// Of the ps at coordinator.address, within worker.call_timeout_ms. Errors name the address.
absl::StatusOr<v1::StatusResponse> QueryStatus(const v1::Config& config);

}  // namespace lodestone::worker
