#include "worker/data/byte_source.h"

#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::worker {
namespace {

constexpr unsigned kFileBufferBytes = 256 * 1024;
constexpr unsigned kPartBufferBytes = 16 * 1024;  // Of a part, behind which little is to be read.
constexpr size_t kReadBytesMax = size_t{1} << 30;

// RFC 8878, 3.1: a frame, and, whatever its last four bits, a skippable one.
constexpr uint32_t kZstdMagic = 0xfd2fb528;
constexpr uint32_t kZstdSkippableMagic = 0x184d2a50;
constexpr uint32_t kGzMagic = 0x8b1f;  // RFC 1952, 2.3.1: its first two bytes.

gzFile Gz(void* file) { return static_cast<gzFile>(file); }

// What the file begins with, little-endian, as this machine; 0 of one that is shorter or cannot be read.
uint32_t MagicOf(const std::string& path) {
  FILE* const file = std::fopen(path.c_str(), "rbe");
  if (file == nullptr) return 0;
  uint32_t magic = 0;
  const size_t size = std::fread(&magic, 1, sizeof(magic), file);
  std::fclose(file);
  return size == sizeof(magic) ? magic : 0;
}

bool IsZstd(const std::string& path) {
  const uint32_t magic = MagicOf(path);
  return magic == kZstdMagic || (magic & ~uint32_t{15}) == kZstdSkippableMagic;
}

}  // namespace

// The unpacking of a zstd.
struct ByteSource::Zstd {
  Zstd() : stream(ZSTD_createDStream(), ZSTD_freeDStream), packed(ZSTD_DStreamInSize()) {}

  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream;
  std::vector<char> packed;
  ZSTD_inBuffer input = {packed.data(), 0, 0};
  bool inside = false;  // A frame has begun and not ended.
};

ByteSource::ByteSource(std::string path, void* file) : path_(std::move(path)), file_(file) {}

bool ByteSource::IsPacked(const std::string& path) { return IsZstd(path) || (MagicOf(path) & 0xffff) == kGzMagic; }

absl::StatusOr<std::unique_ptr<ByteSource>> ByteSource::Open(const std::string& path, uint64_t offset) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (S_ISDIR(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory, not a file"));
  errno = 0;
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return absl::ErrnoToStatus(errno == 0 ? ENOMEM : errno, path);
  gzbuffer(file, offset > 0 ? kPartBufferBytes : kFileBufferBytes);
  std::unique_ptr<ByteSource> source(new ByteSource(path, file));
  if (S_ISREG(info.st_mode) && IsZstd(path)) source->zstd_ = std::make_unique<Zstd>();
  // zlib goes to an offset at once when it has found out that the file is not packed.
  if (offset > 0 && (gzdirect(file) == 0 || gzseek(file, static_cast<z_off_t>(offset), SEEK_SET) < 0)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read from byte ", offset, " on"));
  }
  return source;
}

ByteSource::~ByteSource() { gzclose_r(Gz(file_)); }

absl::StatusOr<size_t> ByteSource::Read(char* to, size_t size) {
  size = std::min(size, kReadBytesMax);
  return zstd_ == nullptr ? ReadFile(to, size) : ReadZstd(to, size);
}

absl::StatusOr<size_t> ByteSource::ReadZstd(char* to, size_t size) {
  Zstd& zstd = *zstd_;
  ZSTD_outBuffer output = {to, size, 0};
  while (output.pos < size) {
    // What has no room in `to` waits in the stream, after the last input too.
    const size_t before = output.pos, taken = zstd.input.pos;
    const size_t left = ZSTD_decompressStream(zstd.stream.get(), &output, &zstd.input);
    if (ZSTD_isError(left)) {
      return absl::DataLossError(
          absl::StrCat(path_, ": the zstd file is damaged near byte ", file_offset(), ": ", ZSTD_getErrorName(left)));
    }
    if (output.pos > before || zstd.input.pos > taken) zstd.inside = left != 0;
    if (zstd.input.pos < zstd.input.size || output.pos > before) continue;
    LODESTONE_ASSIGN_OR_RETURN(zstd.input.size, ReadFile(zstd.packed.data(), zstd.packed.size()));
    zstd.input.pos = 0;
    if (zstd.input.size > 0) continue;
    if (!zstd.inside) break;
    return absl::DataLossError(absl::StrCat(path_, ": the zstd file is cut off at byte ", file_offset()));
  }
  return output.pos;
}

absl::StatusOr<size_t> ByteSource::ReadFile(char* to, size_t size) {
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
