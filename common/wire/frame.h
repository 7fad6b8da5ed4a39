// One v1::Call or v1::Answer as it is written to a stream Exchange: its serialized header and the slices of its
// payload.
//
// Not thread-safe. Slices are referenced, not copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "google/protobuf/message_lite.h"
#include "grpcpp/support/slice.h"

namespace lodestone {

class Frame {
 public:
  // `message` has payload_bytes set to the size of `payload`. `tag` is returned by Outbox::Pack.
  // `shared_memory_bytes`: payload bytes sent through shared memory. They count towards the packing limit, because the
  // receiver processes them too.
  Frame(const google::protobuf::MessageLite& message, std::vector<grpc::Slice> payload, uint64_t tag,
        size_t shared_memory_bytes = 0);

 private:
  friend class Outbox;
  // Bytes that it takes in memory and in a message.
  size_t bytes() const { return sizeof(Frame) + field_.size() + payload_bytes_; }
  size_t weight() const { return bytes() + shared_memory_bytes_; }

  std::string field_;  // Serialized, as field 1 of ExchangeRequest or ExchangeResponse.
  std::vector<grpc::Slice> payload_;
  size_t payload_bytes_ = 0;
  size_t shared_memory_bytes_ = 0;
  uint64_t tag_ = 0;
};

// Bytes of all slices.
size_t SizeOf(const std::vector<grpc::Slice>& slices);

}  // namespace lodestone
