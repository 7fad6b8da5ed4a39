#include "common/wire/frame.h"

#include <utility>

#include "common/wire/message.h"

namespace lodestone {

Frame::Frame(const google::protobuf::MessageLite& message, std::vector<grpc::Slice> payload, uint64_t tag,
             size_t shared_memory_bytes)
    : payload_(std::move(payload)),
      payload_bytes_(SizeOf(payload_)),
      shared_memory_bytes_(shared_memory_bytes),
      tag_(tag) {
  AppendField(1, message, &field_);
}

size_t SizeOf(const std::vector<grpc::Slice>& slices) {
  size_t bytes = 0;
  for (const grpc::Slice& slice : slices) bytes += slice.size();
  return bytes;
}

}  // namespace lodestone
