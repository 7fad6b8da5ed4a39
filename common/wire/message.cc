#include "common/wire/message.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/check.h"

namespace lodestone {
namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

// Walks over one protobuf message without interpreting it.
class Cursor {
 public:
  explicit Cursor(ByteView bytes) : rest_(bytes), size_(bytes.size()) {}

  bool done() const { return rest_.empty(); }
  size_t at() const { return size_ - rest_.size(); }

  bool ReadVarint(uint64_t* value) {
    *value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (done()) return false;
      const uint64_t byte = *rest_.front().data;
      rest_.Take(1);
      *value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  // The next `n` bytes; false if there are not that many.
  bool Skip(uint64_t n, ByteView* skipped = nullptr) {
    if (n > rest_.size()) return false;
    const ByteView taken = rest_.Take(n);
    if (skipped != nullptr) *skipped = taken;
    return true;
  }

 private:
  ByteView rest_;
  const size_t size_;
};

absl::Status Malformed(size_t offset, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed message at byte ", offset, ": ", what));
}

void AppendVarint(uint64_t value, std::string* to) {
  for (; value >= 0x80; value >>= 7) to->push_back(static_cast<char>((value & 0x7f) | 0x80));
  to->push_back(static_cast<char>(value));
}

void Append(ByteView bytes, std::string* to) {
  const size_t at = to->size();
  to->resize(at + bytes.size());
  bytes.CopyTo(to->data() + at);
}

// SplitMessage; also counts how often field 1 comes.
absl::Status Split(ByteView message, std::string* header, ByteView* payload, size_t* repeated) {
  *repeated = 0;
  *payload = {};
  bool has_payload = false;
  ByteView rest = message;  // From the first byte that is not yet in `header`.
  size_t rest_from = 0;
  Cursor cursor(message);
  while (!cursor.done()) {
    const size_t field_at = cursor.at();
    uint64_t tag = 0;
    if (!cursor.ReadVarint(&tag) || tag >> 32 != 0 || tag >> 3 == 0) return Malformed(field_at, "bad field tag");
    uint64_t value = 0;
    ByteView field;
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
        if (!cursor.Skip(value, &field)) {
          return Malformed(field_at, absl::StrCat("truncated: a field of ", value, " bytes"));
        }
        break;
      default:
        return Malformed(field_at, absl::StrCat("wire type ", tag & 7));
    }
    *repeated += tag >> 3 == 1;
    if (tag >> 3 != kPayloadField) continue;
    if ((tag & 7) != kLengthDelimited) return Malformed(field_at, "the payload is not of type bytes");
    if (has_payload) return Malformed(field_at, "two payloads");
    has_payload = true;
    *payload = field;
    Append(rest.Take(field_at - rest_from), header);
    rest.Take(cursor.at() - field_at);
    rest_from = cursor.at();
  }
  Append(rest, header);
  return absl::OkStatus();
}

}  // namespace

Payload::Payload(std::vector<grpc::Slice> slices) {
  auto memory = std::make_shared<Memory>();
  memory->slices = std::move(slices);
  memory->runs.reserve(memory->slices.size());
  for (const grpc::Slice& slice : memory->slices) memory->runs.push_back({slice.begin(), slice.size()});
  bytes_ = ByteView(memory->runs);
  memory_ = std::move(memory);
}

absl::Status SplitMessage(ByteView message, std::string* header, ByteView* payload) {
  size_t repeated = 0;
  return Split(message, header, payload, &repeated);
}

absl::Status ParseMessage(const grpc::ByteBuffer& buffer, google::protobuf::MessageLite* header, Payload* payload,
                          size_t repeated_max, size_t header_bytes_max) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return absl::InvalidArgumentError("the message could not be read");
  *payload = Payload(std::move(slices));
  std::string header_bytes;
  ByteView payload_bytes;
  size_t repeated = 0;
  if (absl::Status status = Split(payload->bytes(), &header_bytes, &payload_bytes, &repeated); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(header->GetTypeName(), ": ", status.message()));
  }
  if (repeated > repeated_max) {
    return absl::InvalidArgumentError(
        absl::StrCat(header->GetTypeName(), ": ", repeated, " of what at most ", repeated_max, " may be in a message"));
  }
  if (header_bytes.size() > header_bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat(header->GetTypeName(), ": ", header_bytes.size(),
                                                   " bytes beside the payload; the limit is ", header_bytes_max,
                                                   ": send it in several messages"));
  }
  if (!header->ParseFromString(header_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("the bytes are not a ", header->GetTypeName()));
  }
  payload->bytes_ = payload_bytes;
  return absl::OkStatus();
}

grpc::ByteBuffer BuildMessage(const google::protobuf::MessageLite& header, std::span<const grpc::Slice> payload) {
  std::string head;
  LODESTONE_CHECK(header.SerializeToString(&head));
  return BuildMessage(std::move(head), payload);
}

grpc::ByteBuffer BuildMessage(std::string head, std::span<const grpc::Slice> payload) {
  size_t payload_size = 0;
  for (const grpc::Slice& slice : payload) payload_size += slice.size();
  if (payload_size > 0) {
    head.push_back(static_cast<char>(kPayloadField << 3 | kLengthDelimited));
    AppendVarint(payload_size, &head);
  }
  std::vector<grpc::Slice> slices;
  slices.reserve(payload.size() + 1);
  slices.emplace_back(head);
  for (const grpc::Slice& slice : payload) {
    if (slice.size() > 0) slices.push_back(slice);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

void AppendField(int number, const google::protobuf::MessageLite& message, std::string* to) {
  const size_t size = message.ByteSizeLong();
  to->reserve(to->size() + size + 12);
  AppendVarint(static_cast<uint64_t>(number) << 3 | kLengthDelimited, to);
  AppendVarint(size, to);
  LODESTONE_CHECK(message.AppendToString(to));
}

}  // namespace lodestone
