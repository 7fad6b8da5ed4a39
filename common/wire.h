// Messages whose last field is a payload of raw numbers (parameter_server.proto, "payload rule"): the small header is
// parsed, the payload is used where it lies.
//
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"

namespace lodestone {

// Bytes of a received payload, kept alive by the slice they lie in. Not aligned.
class Payload {
 public:
  Payload() = default;
  // The `size` bytes from `offset` of `slice`. REQUIRES: they lie within it.
  Payload(grpc::Slice slice, size_t offset, size_t size) : slice_(std::move(slice)), offset_(offset), size_(size) {}

  // Valid until this object is moved from or destroyed (a short slice holds its bytes inline).
  const uint8_t* data() const { return slice_.begin() + offset_; }
  size_t size() const { return size_; }

  // A part of it, which keeps the whole alive. REQUIRES: offset + size <= this->size().
  Payload Sub(size_t offset, size_t size) const { return Payload(slice_, offset_ + offset, size); }

 private:
  grpc::Slice slice_;
  size_t offset_ = 0;
  size_t size_ = 0;
};

// The field number of every payload.
inline constexpr int kPayloadField = 15;

// Splits `message` into the bytes of its payload field and those of all other fields, which are appended to `header`.
// The payload may stand anywhere, as protobuf allows, and is empty if absent. INVALID_ARGUMENT, with the offset, if
// `message` is no protobuf message or holds two payloads.
absl::Status SplitMessage(std::string_view message, std::string* header, std::string_view* payload);

// Parses the header of `buffer` into `header` (whose payload field stays empty) and points `payload` at the rest.
// INVALID_ARGUMENT, naming the message's type, if the bytes are not such a message.
absl::Status ParseMessage(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* header, Payload* payload);

// The message with `header` (whose payload field must be empty) and the concatenation of `payload` as its payload. The
// slices are referenced, not copied.
grpc::ByteBuffer BuildMessage(const google::protobuf::MessageLite& header, std::span<const grpc::Slice> payload);

// Reads element `i` of an unaligned little-endian array.
template <typename T>
T LoadAt(const uint8_t* data, size_t i) {
  T value;
  std::memcpy(&value, data + i * sizeof(T), sizeof(T));
  return value;
}

}  // namespace lodestone
