// An item of a follower's stream, ready to be sent: shared by all streams that send it and what keeps it to send it
// again.
//
// Immutable.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "common/base/byte_view.h"
#include "common/base/types.h"
#include "grpcpp/support/slice.h"
#include "proto/replication.pb.h"

namespace lodestone::server {

struct FollowPiece {
  v1::FollowItem item;
  std::vector<grpc::Slice> payload;
  size_t bytes = 0;     // Of all of it, about.
  Version version = 0;  // Of an update.
};
using FollowPieceRef = std::shared_ptr<const FollowPiece>;

// Fills in what follows from the rest: payload_bytes and bytes.
FollowPieceRef MakePiece(v1::FollowItem item, std::vector<grpc::Slice> payload = {}, Version version = 0);
// An update. Its payload stays where it lies as long as `keep` does; null: it is copied.
FollowPieceRef MakePiece(const v1::LogRecord& record, std::span<const ByteView> payload,
                         const std::shared_ptr<const void>& keep);

}  // namespace lodestone::server
