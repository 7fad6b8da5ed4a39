#include "worker/data/unpacker.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"

namespace lodestone::worker {
namespace {

// RFC 8878, 3.1: a frame, and, whatever its last four bits, a skippable one.
constexpr uint32_t kZstdMagic = 0xfd2fb528;
constexpr uint32_t kZstdSkippableMagic = 0x184d2a50;
constexpr absl::string_view kGzMagic = "\x1f\x8b";  // RFC 1952, 2.3.1: its first two bytes.

// Members may be followed by zeros (of a tape's last block, as gzip has it), and by nothing else.
class GzUnpacker final : public Unpacker {
 public:
  GzUnpacker() { inflateInit2(&stream_, MAX_WBITS + kGzOnly); }
  ~GzUnpacker() override { inflateEnd(&stream_); }

  absl::StatusOr<size_t> Unpack(absl::string_view* packed, char* to, size_t size) override {
    if (!inside_) {
      const size_t zeros = std::min(packed->find_first_not_of('\0'), packed->size());
      padded_ = padded_ || zeros > 0;
      packed->remove_prefix(zeros);
      if (packed->empty()) return 0;
      if (padded_ || packed->front() != kGzMagic.front()) {
        return absl::DataLossError("what follows is not packed; was another file appended?");
      }
      inflateReset(&stream_);
      inside_ = true;
    }
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed->data()));
    stream_.avail_in = static_cast<uInt>(packed->size());
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = static_cast<uInt>(size);
    const int result = inflate(&stream_, Z_NO_FLUSH);
    packed->remove_prefix(packed->size() - stream_.avail_in);
    inside_ = result != Z_STREAM_END;
    if (result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR) return size - stream_.avail_out;
    if (result == Z_DATA_ERROR || result == Z_NEED_DICT) {
      return absl::DataLossError(stream_.msg == nullptr ? "it needs a dictionary" : stream_.msg);
    }
    return absl::ResourceExhaustedError("no memory to unpack it");  // So inflateInit2 failed, too.
  }

  bool inside() const override { return inside_; }
  absl::string_view name() const override { return "gz"; }

 private:
  static constexpr int kGzOnly = 16;  // No bare zlib.

  z_stream stream_ = {};
  bool inside_ = true;   // A file that is unpacked begins with a member.
  bool padded_ = false;  // Zeros follow the last member.
};

class ZstdUnpacker final : public Unpacker {
 public:
  ZstdUnpacker() : stream_(ZSTD_createDStream(), ZSTD_freeDStream) {}

  absl::StatusOr<size_t> Unpack(absl::string_view* packed, char* to, size_t size) override {
    if (stream_ == nullptr) return absl::ResourceExhaustedError("no memory to unpack it");
    ZSTD_inBuffer input = {packed->data(), packed->size(), 0};
    ZSTD_outBuffer output = {to, size, 0};
    const size_t left = ZSTD_decompressStream(stream_.get(), &output, &input);
    packed->remove_prefix(input.pos);
    if (ZSTD_isError(left)) return absl::DataLossError(ZSTD_getErrorName(left));
    if (output.pos > 0 || input.pos > 0) inside_ = left != 0;
    return output.pos;
  }

  bool inside() const override { return inside_; }
  absl::string_view name() const override { return "zstd"; }

 private:
  const std::unique_ptr<ZSTD_DStream, size_t (*)(ZSTD_DStream*)> stream_;
  bool inside_ = false;
};

}  // namespace

std::unique_ptr<Unpacker> Unpacker::Of(absl::string_view magic) {
  if (magic.substr(0, kGzMagic.size()) == kGzMagic) return std::make_unique<GzUnpacker>();
  uint32_t number = 0;  // Little-endian, as this machine.
  if (magic.size() < sizeof(number)) return nullptr;
  std::memcpy(&number, magic.data(), sizeof(number));
  const bool is_zstd = number == kZstdMagic || (number & ~uint32_t{15}) == kZstdSkippableMagic;
  return is_zstd ? std::make_unique<ZstdUnpacker>() : nullptr;
}

}  // namespace lodestone::worker
