#include "common/io/record_file.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/planted_defect.h"
#include "common/base/status.h"
#include "common/io/crc32c.h"

namespace lodestone {
namespace {

static_assert(std::endian::native == std::endian::little, "the format's numbers are used as they lie");

constexpr uint32_t kMagic = 0x3152534c;              // "LSR1" in the file.
constexpr char kEnd[kRecordEndBytes + 1] = "end\n";  // No byte is one flipped bit away from zero.
constexpr size_t kFetchBytes = 256 << 10;

// A record's head, as it lies in the file.
struct HeadFields {
  uint32_t magic = kMagic;
  uint32_t message_bytes = 0;
  uint64_t payload_bytes = 0;
  uint32_t message_crc = 0;
  uint32_t payload_crc = 0;
  uint32_t reserved = 0;
  uint32_t head_crc = 0;

  uint32_t Crc() const { return Crc32c(this, sizeof(*this) - sizeof(head_crc)); }
};
static_assert(sizeof(HeadFields) == kRecordHeadBytes);

}  // namespace

struct RecordReader::Head : HeadFields {
  uint64_t record_bytes() const { return kRecordHeadBytes + message_bytes + payload_bytes + kRecordEndBytes; }
};

RecordBuilder::RecordBuilder(const google::protobuf::MessageLite& message, std::span<const ByteView> payload) {
  const size_t size = message.ByteSizeLong();
  LODESTONE_CHECK(size <= limits::kRecordMessageBytesMax);
  front_.resize(kRecordHeadBytes + size);
  message.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(front_.data()) + kRecordHeadBytes);
  Build(payload);
}

RecordBuilder::RecordBuilder(std::string_view message, std::span<const ByteView> payload) {
  LODESTONE_CHECK(message.size() <= limits::kRecordMessageBytesMax);
  front_.reserve(kRecordHeadBytes + message.size() + kRecordEndBytes);
  front_.resize(kRecordHeadBytes);
  front_ += message;
  Build(payload);
}

void RecordBuilder::Build(std::span<const ByteView> payload) {
  HeadFields head;
  const size_t message_bytes = front_.size() - kRecordHeadBytes;
  for (const ByteView& view : payload) {
    head.payload_bytes += view.size();
    view.ForEachRun<uint8_t>([&](const uint8_t* data, size_t size) {
      head.payload_crc = Crc32c(data, size, head.payload_crc);
      payload_.push_back({const_cast<uint8_t*>(data), size});
    });
  }
  LODESTONE_CHECK(head.payload_bytes <= limits::kRecordPayloadBytesMax);
  head.message_bytes = static_cast<uint32_t>(message_bytes);
  head.message_crc = Crc32c(front_.data() + kRecordHeadBytes, message_bytes);
  head.head_crc = head.Crc();
  std::memcpy(front_.data(), &head, sizeof(head));
  if (payload_.empty()) front_.append(kEnd, kRecordEndBytes);
  bytes_ = kRecordHeadBytes + message_bytes + head.payload_bytes + kRecordEndBytes;
}

void RecordBuilder::AppendPieces(std::vector<iovec>* pieces) const {
  if (bytes_ == 0) return;
  pieces->push_back({const_cast<char*>(front_.data()), front_.size()});
  if (payload_.empty()) return;
  pieces->insert(pieces->end(), payload_.begin(), payload_.end());
  pieces->push_back({const_cast<char*>(kEnd), kRecordEndBytes});
}

std::string RecordBuilder::Copy() const {
  std::vector<iovec> pieces;
  AppendPieces(&pieces);
  std::string copy;
  copy.reserve(bytes_);
  for (const iovec& piece : pieces) copy.append(static_cast<const char*>(piece.iov_base), piece.iov_len);
  return copy;
}

absl::StatusOr<std::unique_ptr<RecordReader>> RecordReader::Open(const std::string& path, uint64_t bytes_max) {
  LODESTONE_ASSIGN_OR_RETURN(File file, File::Open(path, O_RDONLY));
  LODESTONE_ASSIGN_OR_RETURN(uint64_t size, file.Size());
  size = std::min(size, bytes_max);
  void* data = nullptr;
  if (size > 0) {
    data = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd(), 0);
    if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": mmap"));
  }
  return std::unique_ptr<RecordReader>(new RecordReader(std::move(file), size, static_cast<const uint8_t*>(data)));
}

RecordReader::~RecordReader() {
  if (data_ != nullptr) munmap(const_cast<uint8_t*>(data_), size_);
}

RecordReader::Outcome RecordReader::Next(Record* record) {
  if (outcome_ != Outcome::kRecord) return outcome_;
  offset_ = next_;
  if (offset_ == size_) return outcome_ = Outcome::kEnd;
  const uint8_t* const data = data_ + offset_;
  uint64_t end = std::min(size_, offset_ + kRecordHeadBytes);  // Of the record, as far as it is known.
  if (const absl::Status read = Fetch(end); !read.ok()) return Stop(Outcome::kDamaged, read.message());
  Head head;
  const char* wrong = CheckHead(end, &head);
  if (wrong == nullptr && (end - offset_ < kRecordHeadBytes || size_ - offset_ < head.record_bytes())) {
    return Stop(Outcome::kTorn, absl::StrCat("the file ends ", size_ - offset_, " bytes into it"));
  }
  if (wrong == nullptr) {
    end = offset_ + head.record_bytes();
    if (const absl::Status read = Fetch(end); !read.ok()) return Stop(Outcome::kDamaged, read.message());
    record->message = {reinterpret_cast<const char*>(data) + kRecordHeadBytes, head.message_bytes};
    record->payload = ByteView(data + kRecordHeadBytes + head.message_bytes, head.payload_bytes);
    wrong = CheckBody(head, *record);
  }
  if (wrong == nullptr) {
    next_ = end;
    return Outcome::kRecord;
  }
  *record = {};
  if (ZerosFromBefore(end)) return Stop(Outcome::kTorn, "from inside it on there are only zeros");
  return Stop(Outcome::kDamaged, wrong);
}

const char* RecordReader::CheckHead(uint64_t end, Head* head) const {
  // Bytes of the magic that the file ends before stay as they should be.
  std::memcpy(static_cast<HeadFields*>(head), data_ + offset_, end - offset_);
  constexpr const char* kNoBegin = "it does not begin as a record does";
  if (head->magic != kMagic) return kNoBegin;
  if (end - offset_ < kRecordHeadBytes) return nullptr;
  if (head->head_crc != head->Crc() || head->reserved != 0) return "its head does not match its checksum";
  if (head->message_bytes > limits::kRecordMessageBytesMax || head->payload_bytes > limits::kRecordPayloadBytesMax) {
    return "it is longer than a record can be";
  }
  return nullptr;
}

const char* RecordReader::CheckBody(const Head& head, const Record& record) {
  if (Planted(Defect::kTornRecordAccepted)) return nullptr;
  if (Crc32c(record.message.data(), record.message.size()) != head.message_crc) {
    return "its message does not match its checksum";
  }
  const uint8_t* const payload = record.payload.contiguous();
  if (Crc32c(payload, record.payload.size()) != head.payload_crc) return "its payload does not match its checksum";
  if (std::memcmp(payload + record.payload.size(), kEnd, kRecordEndBytes) != 0)
    return "it does not end as a record does";
  return nullptr;
}

RecordReader::Outcome RecordReader::Next(google::protobuf::MessageLite* message, ByteView* payload) {
  Record record;
  const Outcome outcome = Next(&record);
  if (outcome != Outcome::kRecord) return outcome;
  if (!message->ParseFromArray(record.message.data(), static_cast<int>(record.message.size()))) {
    return Stop(Outcome::kDamaged, absl::StrCat("it holds no ", message->GetTypeName()));
  }
  *payload = record.payload;
  return outcome;
}

bool RecordReader::Find(uint64_t from, Record* record) {
  if (!Fetch(size_).ok()) return false;
  while (from < size_) {
    const void* const begin = memmem(data_ + from, size_ - from, &kMagic, sizeof(kMagic));
    if (begin == nullptr) return false;
    next_ = static_cast<uint64_t>(static_cast<const uint8_t*>(begin) - data_);
    outcome_ = Outcome::kRecord;
    error_ = absl::OkStatus();
    if (Next(record) == Outcome::kRecord) return true;
    from = offset_ + 1;
  }
  return false;
}

absl::Status RecordReader::Fetch(uint64_t end) {
  if (end > fetched_ && scratch_ == nullptr) {
    scratch_ = std::make_unique_for_overwrite<char[]>(std::min<uint64_t>(kFetchBytes, size_));
  }
  while (fetched_ < end) {
    const size_t wanted = std::min<uint64_t>(kFetchBytes, size_ - fetched_);
    const absl::StatusOr<size_t> read = file_.ReadAt(fetched_, scratch_.get(), wanted);
    unreadable_ = !read.ok() || *read < wanted;
    if (!read.ok()) return read.status();
    if (unreadable_) return absl::DataLossError("the file was shortened while it was read");
    fetched_ += wanted;
  }
  return absl::OkStatus();
}

bool RecordReader::ZerosFromBefore(uint64_t end) {
  for (uint64_t at = end - 1; at < size_; ++at) {
    if (at >= fetched_ && !Fetch(at + 1).ok()) return false;
    if (data_[at] != 0) return false;
  }
  return true;
}

RecordReader::Outcome RecordReader::Stop(Outcome outcome, absl::string_view wrong) {
  const char* const what = outcome == Outcome::kTorn ? "was not written to its end" : "is damaged";
  error_ = absl::DataLossError(absl::StrCat(path(), ": the record at offset ", offset_, " ", what, ": ", wrong));
  return outcome_ = outcome;
}

}  // namespace lodestone
