// The queue of calls or answers of Exchange that wait to be written to a stream. Small ones are packed into one
// message: a stream's cost per message is paid once for everything that arrived while the previous message was being
// written.
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
  // Items are packed together as long as a message weighs less than `pack_bytes`.
  explicit Outbox(size_t pack_bytes) : pack_bytes_(pack_bytes) {}

  // One v1::Call or v1::Answer.
  class Item {
   public:
    // `message` has payload_bytes set to the size of `payload`. Pack returns `tag`.
    // `shared_memory_bytes`: payload bytes sent through shared memory. They count towards the packing limit, because
    // the receiver processes them too.
    Item(const google::protobuf::MessageLite& message, std::vector<grpc::Slice> payload, uint64_t tag,
         size_t shared_memory_bytes = 0);

   private:
    friend class Outbox;
    // Bytes in this process's memory and in a message.
    size_t bytes() const { return sizeof(Item) + field_.size() + payload_bytes_; }
    size_t weight() const { return bytes() + shared_memory_bytes_; }

    std::string field_;  // Serialized, as field 1 of ExchangeRequest or ExchangeResponse.
    std::vector<grpc::Slice> payload_;
    size_t payload_bytes_ = 0;
    size_t shared_memory_bytes_ = 0;
    uint64_t tag_ = 0;
  };

  void Add(Item item);
  bool empty() const { return items_.empty(); }
  size_t size() const { return items_.size(); }
  // The waiting items fill a message: waiting for more gains nothing.
  bool full() const;
  // Bytes of the waiting items in this process's memory.
  size_t bytes() const { return bytes_; }
  // The same, including their bytes in shared memory.
  size_t weight() const { return weight_; }
  void Clear();

  // Takes items from the front into a message, at least one and at most limits::kExchangeCallsMax; sets `tags` to
  // theirs. REQUIRES: !empty().
  grpc::ByteBuffer Pack(std::vector<uint64_t>* tags);

 private:
  const size_t pack_bytes_;
  std::deque<Item> items_;
  size_t bytes_ = 0;
  size_t weight_ = 0;
};

// Bytes of all slices.
size_t SizeOf(const std::vector<grpc::Slice>& slices);

}  // namespace lodestone
