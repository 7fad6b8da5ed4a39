#include "worker/data/parquet_codec.h"

#include <snappy.h>
#include <zlib.h>
#include <zstd.h>

#include "absl/strings/str_cat.h"

namespace lodestone::worker {
namespace {

// parquet.thrift: CompressionCodec.
constexpr int32_t kUncompressed = 0;
constexpr int32_t kSnappy = 1;
constexpr int32_t kGzip = 2;
constexpr int32_t kZstd = 6;
constexpr const char* kCodecNames[] = {"UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW"};

bool UnpackSnappy(absl::string_view packed, std::string* out) {
  size_t bytes = 0;
  return snappy::GetUncompressedLength(packed.data(), packed.size(), &bytes) && bytes == out->size() &&
         snappy::RawUncompress(packed.data(), packed.size(), out->data());
}

bool UnpackGzip(absl::string_view packed, std::string* out) {
  z_stream stream = {};
  constexpr int kGzipOrZlib = 32;
  if (inflateInit2(&stream, MAX_WBITS + kGzipOrZlib) != Z_OK) return false;
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out->data());
  stream.avail_out = static_cast<uInt>(out->size());
  const int result = inflate(&stream, Z_FINISH);
  inflateEnd(&stream);
  return result == Z_STREAM_END && stream.avail_out == 0;
}

bool UnpackZstd(absl::string_view packed, std::string* out) {
  return ZSTD_decompress(out->data(), out->size(), packed.data(), packed.size()) == out->size();
}

}  // namespace

absl::Status UnpackParquet(int32_t codec, absl::string_view packed, size_t bytes, std::string* out) {
  out->resize(bytes);
  bool whole = false;
  // Some writers give no bytes at all for a page of nulls, whatever the codec makes of nothing.
  const bool nothing = packed.empty() && bytes == 0;
  switch (codec) {
    case kUncompressed:
      whole = packed.size() == bytes;
      if (whole) out->assign(packed.data(), packed.size());
      break;
    case kSnappy:
      whole = nothing || UnpackSnappy(packed, out);
      break;
    case kGzip:
      whole = nothing || UnpackGzip(packed, out);
      break;
    case kZstd:
      whole = nothing || UnpackZstd(packed, out);
      break;
    default:
      return absl::UnimplementedError(
          absl::StrCat("it is packed by ", codec > 0 && codec < 8 ? kCodecNames[codec] : absl::StrCat("codec ", codec),
                       "; write it with snappy, gzip, zstd or none"));
  }
  if (whole) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("a page's ", packed.size(), " packed bytes do not become ", bytes));
}

}  // namespace lodestone::worker
