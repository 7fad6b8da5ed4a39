// The change of one shard on its way to a subscriber.
//
// Thread safety: a value. Ownership: keeps the blocks that its slices point into alive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "common/base/types.h"
#include "grpcpp/support/slice.h"
#include "proto/parameter_server.pb.h"

namespace lodestone::server {

// All that differs between a version (or nothing: an anchor) and `version`, as the deltas to be sent.
struct ShardChange {
  ShardId shard = 0;
  Version version = 0;
  uint64_t term = 0;
  // A delta with at most one part, and that part's payload: about limits::kDeltaBytesTarget bytes at most, unless a
  // single block or row has more.
  struct Piece {
    v1::Delta::ShardDelta delta;
    std::vector<grpc::Slice> payload;
    size_t payload_bytes = 0;
  };
  std::deque<Piece> pieces;  // At least one. It has no part if nothing of the subscription changed.
};

}  // namespace lodestone::server
