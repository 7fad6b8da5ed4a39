#include "worker/data/byte_source.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::worker {
namespace {

constexpr unsigned kFileBufferBytes = 256 * 1024;
constexpr size_t kReadBytesMax = size_t{1} << 30;

gzFile Gz(void* file) { return static_cast<gzFile>(file); }

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> ByteSource::Open(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (S_ISDIR(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory, not a file"));
  errno = 0;
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return absl::ErrnoToStatus(errno == 0 ? ENOMEM : errno, path);
  gzbuffer(file, kFileBufferBytes);
  return std::unique_ptr<ByteSource>(new ByteSource(path, file));
}

ByteSource::~ByteSource() { gzclose_r(Gz(file_)); }

absl::StatusOr<size_t> ByteSource::Read(char* to, size_t size) {
  size = std::min(size, kReadBytesMax);
  const int count = gzread(Gz(file_), to, static_cast<unsigned>(size));
  if (count >= 0 && static_cast<size_t>(count) == size) return size;
  int code = Z_OK;
  const char* message = gzerror(Gz(file_), &code);
  if (code == Z_ERRNO) return absl::ErrnoToStatus(errno, path_);
  if (code == Z_BUF_ERROR) {
    return absl::DataLossError(absl::StrCat(path_, ": the gz file is cut off at byte ", file_offset()));
  }
  if (count < 0 || code != Z_OK) {
    return absl::DataLossError(
        absl::StrCat(path_, ": the gz file is damaged near byte ", file_offset(), ": ", message));
  }
  return static_cast<size_t>(count);
}

uint64_t ByteSource::file_offset() const {
  const z_off_t offset = gzoffset(Gz(file_));
  return offset < 0 ? 0 : static_cast<uint64_t>(offset);
}

}  // namespace lodestone::worker
