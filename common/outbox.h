// Calls or answers of Exchange that wait to be written to a stream. Small ones are packed into one message: what a
// stream costs per message is paid once for all that came while the one before was being written.
//
// Not thread-safe: guarded by the stream's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace lodestone {

class Outbox {
 public:
  // One v1::Call or v1::Answer.
  class Item {
   public:
    // `message` has payload_bytes set to the size of `payload`. `tag` is given back when it is packed.
    Item(const google::protobuf::MessageLite& message, std::vector<grpc::Slice> payload, uint64_t tag);

   private:
    friend class Outbox;
    std::string field_;  // Serialized, as field 1 of ExchangeRequest or ExchangeResponse.
    std::vector<grpc::Slice> payload_;
    size_t payload_bytes_ = 0;
    uint64_t tag_ = 0;
  };

  void Add(Item item);
  bool empty() const { return items_.empty(); }
  // Payload bytes of what waits.
  size_t payload_bytes() const { return payload_bytes_; }
  void Clear();

  // Takes items from the front, at least one, into a message of about limits::kPackBytesTarget; sets `tags` to theirs.
  // REQUIRES: !empty().
  grpc::ByteBuffer Pack(std::vector<uint64_t>* tags);

 private:
  std::deque<Item> items_;
  size_t payload_bytes_ = 0;
};

// Bytes of all slices.
size_t SizeOf(const std::vector<grpc::Slice>& slices);

}  // namespace lodestone
