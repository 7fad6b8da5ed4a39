#include "server/replication/follow_piece.h"

#include <utility>

#include "common/wire/owned_slice.h"

namespace lodestone::server {

FollowPieceRef MakePiece(v1::FollowItem item, std::vector<grpc::Slice> payload, Version version) {
  auto piece = std::make_shared<FollowPiece>();
  size_t bytes = 0;
  for (const grpc::Slice& slice : payload) bytes += slice.size();
  item.set_payload_bytes(bytes);
  piece->bytes = bytes + item.ByteSizeLong();
  piece->item = std::move(item);
  piece->payload = std::move(payload);
  piece->version = version;
  return piece;
}

FollowPieceRef MakePiece(const v1::LogRecord& record, std::span<const ByteView> views,
                         const std::shared_ptr<const void>& keep) {
  v1::FollowItem item;
  *item.mutable_record() = record;
  std::vector<grpc::Slice> payload;
  for (ByteView rest : views) {
    while (!rest.empty()) {
      const ByteView::Run run = rest.front();
      rest.Take(run.size);
      if (keep == nullptr) {
        payload.emplace_back(run.data, run.size);
        continue;
      }
      payload.push_back(OwnedSlice(run.data, run.size, keep));
    }
  }
  return MakePiece(std::move(item), std::move(payload), record.version());
}

}  // namespace lodestone::server
