// Turns a shard's snapshot into what a subscriber is sent.
//
// Thread safety: pure functions; snapshots are immutable.
#pragma once

#include <optional>

#include "grpcpp/support/slice.h"
#include "server/shard/shard.h"
#include "server/store/store.h"
#include "server/table/buffer.h"

namespace lodestone::server {

// A slice of `size` bytes of `buffer`, from byte `at` on, that keeps it alive.
grpc::Slice SliceOf(BufferRef buffer, size_t size, size_t at = 0);

// What differs between `from` (nullopt: nothing, an anchor) and the snapshot, in pieces of about `bytes_target` payload
// bytes. Dense blocks are referenced, rows are copied.
Store::ShardChange AssembleChange(const Shard::Snapshot& snapshot, std::optional<Version> from, size_t bytes_target);

}  // namespace lodestone::server
