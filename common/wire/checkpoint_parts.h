// The parts of a checkpoint that several ps have written, as their answers tell.
//
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/admin.pb.h"

namespace lodestone {

// Attempts at a checkpoint that lacks shards which moved while it was written, and the pause before the next one.
inline constexpr int kCheckpointAttemptsMax = 3;
inline constexpr int64_t kCheckpointAgainMs = 100;

// OK: together the parts hold all shards of the cluster, or one is of a ps of an older version, which does not tell.
// ABORTED, naming the shards that none holds: they moved while the checkpoint `name` was written.
absl::Status CheckHoldsAllShards(absl::string_view name, std::span<const v1::CheckpointResponse> parts);

}  // namespace lodestone
