// The file that a coordinator keeps its state in: one record, replaced as a whole, so that after a crash there is the
// state before or the one after.
//
// Thread safety: one call at a time for a path.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/coordinator_state.pb.h"

namespace lodestone::server {

// The state in the file at `path`; nullopt if there is no file. DATA_LOSS, naming file and offset, if it is not what
// was written.
absl::StatusOr<std::optional<v1::CoordinatorState>> ReadCoordinatorState(const std::string& path);

// OK: the disk has it. The folder must exist.
absl::Status WriteCoordinatorState(const std::string& path, const v1::CoordinatorState& state);

}  // namespace lodestone::server
