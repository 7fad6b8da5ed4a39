#include "worker/data/byte_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::worker {
namespace {

constexpr size_t kFileBufferBytes = 256 * 1024;
constexpr size_t kPartBufferBytes = 16 * 1024;  // Of a part, behind which little is to be read.
constexpr size_t kReadBytesMax = size_t{1} << 30;

// Null: the file is not packed.
absl::StatusOr<std::unique_ptr<Unpacker>> UnpackerOf(const RandomFile& file) {
  char magic[Unpacker::kMagicBytes];
  LODESTONE_ASSIGN_OR_RETURN(const size_t size, file.ReadUpTo(0, magic, sizeof(magic)));
  return Unpacker::Of({magic, size});
}

}  // namespace

ByteSource::ByteSource(std::unique_ptr<RandomFile> file, std::unique_ptr<Unpacker> unpacker, uint64_t offset)
    : file_(std::move(file)),
      unpacker_(std::move(unpacker)),
      buffer_(offset > 0 ? kPartBufferBytes : kFileBufferBytes),
      unread_(buffer_.data(), 0),
      next_(offset) {}

bool ByteSource::IsPacked(const std::string& path) {
  const auto file = RandomFile::Open(path);
  if (!file.ok()) return false;
  const auto unpacker = UnpackerOf(**file);
  return unpacker.ok() && *unpacker != nullptr;
}

absl::StatusOr<std::unique_ptr<ByteSource>> ByteSource::Open(const std::string& path, uint64_t offset) {
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<RandomFile> file, RandomFile::Open(path));
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<Unpacker> unpacker, UnpackerOf(*file));
  if (offset > 0 && unpacker != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": is packed, and cannot be read from byte ", offset, " on"));
  }
  return std::unique_ptr<ByteSource>(new ByteSource(std::move(file), std::move(unpacker), offset));
}

absl::StatusOr<size_t> ByteSource::Read(char* to, size_t size) {
  size = std::min(size, kReadBytesMax);
  return unpacker_ == nullptr ? ReadPlain(to, size) : ReadPacked(to, size);
}

absl::Status ByteSource::Fill() {
  LODESTONE_ASSIGN_OR_RETURN(const size_t count, file_->ReadUpTo(next_, buffer_.data(), buffer_.size()));
  next_ += count;
  unread_ = {buffer_.data(), count};
  return absl::OkStatus();
}

absl::StatusOr<size_t> ByteSource::ReadPlain(char* to, size_t size) {
  size_t done = std::min(size, unread_.size());
  std::memcpy(to, unread_.data(), done);
  unread_.remove_prefix(done);
  if (done == size) return size;
  if (size - done < buffer_.size()) {  // Small pieces come by the buffer.
    LODESTONE_RETURN_IF_ERROR(Fill());
    const size_t count = std::min(size - done, unread_.size());
    std::memcpy(to + done, unread_.data(), count);
    unread_.remove_prefix(count);
    return done + count;
  }
  LODESTONE_ASSIGN_OR_RETURN(const size_t count, file_->ReadUpTo(next_, to + done, size - done));
  next_ += count;
  return done + count;
}

absl::StatusOr<size_t> ByteSource::ReadPacked(char* to, size_t size) {
  size_t done = 0;
  while (done < size) {
    const absl::StatusOr<size_t> count = unpacker_->Unpack(&unread_, to + done, size - done);
    if (absl::IsDataLoss(count.status())) {
      return absl::DataLossError(absl::StrCat(path(), ": the ", unpacker_->name(), " file is damaged near byte ",
                                              file_offset(), ": ", count.status().message()));
    }
    if (!count.ok()) return Annotate(count.status(), path());
    done += *count;
    if (*count > 0 || !unread_.empty()) continue;
    LODESTONE_RETURN_IF_ERROR(Fill());
    if (!unread_.empty()) continue;
    if (!unpacker_->inside()) break;
    return absl::DataLossError(
        absl::StrCat(path(), ": the ", unpacker_->name(), " file is cut off at byte ", file_offset()));
  }
  return done;
}

}  // namespace lodestone::worker
