#include "common/wire.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/check.h"

namespace lodestone {
namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

// Walks over one protobuf message without interpreting it.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : bytes_(bytes) {}

  bool done() const { return at_ == bytes_.size(); }
  size_t at() const { return at_; }

  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (done()) return false;
      const uint64_t byte = static_cast<unsigned char>(bytes_[at_++]);
      *value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  bool Skip(uint64_t n) {
    if (n > bytes_.size() - at_) return false;
    at_ += n;
    return true;
  }

 private:
  const std::string_view bytes_;
  size_t at_ = 0;
};

absl::Status Malformed(size_t offset, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed message at byte ", offset, ": ", what));
}

// One slice with all bytes of `buffer`: the buffer's own if it has just one.
absl::Status Flatten(const grpc::ByteBuffer& buffer, grpc::Slice* slice) {
  if (buffer.TrySingleSlice(slice).ok()) return absl::OkStatus();
  if (buffer.DumpToSingleSlice(slice).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError("the message could not be read");
}

}  // namespace

absl::Status SplitMessage(std::string_view message, std::string* header, std::string_view* payload) {
  *payload = {};
  bool has_payload = false;
  size_t header_from = 0;
  Cursor cursor(message);
  while (!cursor.done()) {
    const size_t field_at = cursor.at();
    uint64_t tag = 0;
    if (!cursor.ReadVarint(&tag) || tag >> 32 != 0 || tag >> 3 == 0) return Malformed(field_at, "bad field tag");
    uint64_t value = 0;
    switch (tag & 7) {
      case kVarint:
        if (!cursor.ReadVarint(&value)) return Malformed(field_at, "bad varint");
        break;
      case kFixed64:
        if (!cursor.Skip(8)) return Malformed(field_at, "truncated");
        break;
      case kFixed32:
        if (!cursor.Skip(4)) return Malformed(field_at, "truncated");
        break;
      case kLengthDelimited:
        if (!cursor.ReadVarint(&value)) return Malformed(field_at, "bad length");
        if (!cursor.Skip(value)) return Malformed(field_at, absl::StrCat("truncated: a field of ", value, " bytes"));
        break;
      default:
        return Malformed(field_at, absl::StrCat("wire type ", tag & 7));
    }
    if (tag >> 3 != kPayloadField) continue;
    if ((tag & 7) != kLengthDelimited) return Malformed(field_at, "the payload is not of type bytes");
    if (has_payload) return Malformed(field_at, "two payloads");
    has_payload = true;
    *payload = message.substr(cursor.at() - value, value);
    header->append(message.substr(header_from, field_at - header_from));
    header_from = cursor.at();
  }
  header->append(message.substr(header_from));
  return absl::OkStatus();
}

absl::Status ParseMessage(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* header, Payload* payload) {
  grpc::Slice slice;
  if (absl::Status status = Flatten(buffer, &slice); !status.ok()) return status;
  const std::string_view message(reinterpret_cast<const char*>(slice.begin()), slice.size());
  std::string header_bytes;
  std::string_view payload_bytes;
  if (absl::Status status = SplitMessage(message, &header_bytes, &payload_bytes); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(header->GetTypeName(), ": ", status.message()));
  }
  if (!header->ParseFromString(header_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("the bytes are not a ", header->GetTypeName()));
  }
  const auto* data = reinterpret_cast<const uint8_t*>(payload_bytes.data());
  // The payload may lie in the slice itself (short slices are stored inline), so it is found again after the move.
  const size_t offset = payload_bytes.empty() ? 0 : static_cast<size_t>(data - slice.begin());
  *payload = Payload(std::move(slice), offset, payload_bytes.size());
  return absl::OkStatus();
}

grpc::ByteBuffer BuildMessage(const google::protobuf::MessageLite& header, std::span<const grpc::Slice> payload) {
  size_t payload_size = 0;
  for (const grpc::Slice& slice : payload) payload_size += slice.size();
  std::string head;
  LODESTONE_CHECK(header.SerializeToString(&head));
  if (payload_size > 0) {
    head.push_back(static_cast<char>(kPayloadField << 3 | kLengthDelimited));
    for (uint64_t rest = payload_size;;) {
      const bool last = rest < 0x80;
      head.push_back(static_cast<char>((rest & 0x7f) | (last ? 0 : 0x80)));
      if (last) break;
      rest >>= 7;
    }
  }
  std::vector<grpc::Slice> slices;
  slices.reserve(payload.size() + 1);
  slices.emplace_back(head);
  for (const grpc::Slice& slice : payload) {
    if (slice.size() > 0) slices.push_back(slice);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace lodestone
