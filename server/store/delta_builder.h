// Builds the change of one shard for a subscriber from a snapshot of the shard.
//
// Thread safety: pure functions; snapshots are immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/base/types.h"
#include "server/shard/shard.h"
#include "server/store/shard_change.h"

namespace lodestone::server {

// The change from version `from` (nullopt: nothing, an anchor) to the snapshot, which is of `term`, in pieces of about
// `bytes_target` payload bytes. Dense blocks are referenced, rows are copied.
ShardChange AssembleChange(const Shard::Snapshot& snapshot, std::optional<Version> from, uint64_t term,
                           size_t bytes_target);

}  // namespace lodestone::server
