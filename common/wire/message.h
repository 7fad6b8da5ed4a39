// Messages whose last field is a payload of raw numbers (parameter_server.proto, "payload rule"): the small header is
// parsed, the payload is used where it lies.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/byte_view.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace lodestone {

// Bytes of a received payload, kept alive by the slices they lie in. Copies share the slices.
class Payload {
 public:
  Payload() = default;
  // All bytes of `slices`, in order.
  explicit Payload(std::vector<grpc::Slice> slices);

  // Valid while this object, or one made from it, lives.
  const ByteView& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }

  // The first `size` bytes, taken away from this one. REQUIRES: size <= this->size().
  Payload Take(size_t size) {
    Payload taken = *this;
    taken.bytes_ = bytes_.Take(size);
    return taken;
  }

 private:
  friend absl::Status ParseMessage(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* header,
                                   Payload* payload, size_t repeated_max, size_t header_bytes_max);
  // What the bytes lie in. Short slices hold theirs inline, so slices do not move any more.
  struct Memory {
    std::vector<grpc::Slice> slices;
    std::vector<ByteView::Run> runs;
  };

  std::shared_ptr<const Memory> memory_;
  ByteView bytes_;
};

// What a call may have beside its payload, so that little of what it sends becomes much in memory: an empty Part is 2
// bytes on the wire and a hundred here.
inline constexpr size_t kCallHeaderBytesMax = 4 << 20;

// The field number of every payload.
inline constexpr int kPayloadField = 15;

// Splits `message` into the bytes of its payload field and those of all other fields, which are appended to `header`.
// The payload may stand anywhere, as protobuf allows, and is empty if absent. INVALID_ARGUMENT, with the offset, if
// `message` is no protobuf message or holds two payloads.
absl::Status SplitMessage(ByteView message, std::string* header, ByteView* payload);

// Parses the header of `buffer` into `header` (whose payload field stays empty) and points `payload` at the rest, where
// it lies. INVALID_ARGUMENT, naming the message's type, if the bytes are not such a message, or if its field 1 comes
// more than `repeated_max` times or its header is longer than `header_bytes_max` (which is known before memory is taken
// for what they become).
absl::Status ParseMessage(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* header, Payload* payload,
                          size_t repeated_max = SIZE_MAX, size_t header_bytes_max = SIZE_MAX);

// The message with `header` (whose payload field must be empty) and the concatenation of `payload` as its payload. The
// slices are referenced, not copied.
grpc::ByteBuffer BuildMessage(const google::protobuf::MessageLite& header, std::span<const grpc::Slice> payload);

// The same of a header that is serialized already.
grpc::ByteBuffer BuildMessage(std::string header, std::span<const grpc::Slice> payload);

// Appends field `number` of a message, which is itself a message, in serialized form.
void AppendField(int number, const google::protobuf::MessageLite& message, std::string* to);

// Reads element `i` of an unaligned little-endian array.
template <typename T>
T LoadAt(const uint8_t* data, size_t i) {
  T value;
  std::memcpy(&value, data + i * sizeof(T), sizeof(T));
  return value;
}

}  // namespace lodestone
