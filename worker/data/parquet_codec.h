// Unpacking of Parquet's pages: none, snappy, gzip and zstd. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lodestone::worker {

// Unpacks `packed` into `out`, which is resized to `bytes`, by the codec of that number (parquet.thrift:
// CompressionCodec). DATA_LOSS if the bytes are damaged, or become more or less than `bytes`; UNIMPLEMENTED, naming it,
// for another codec.
absl::Status UnpackParquet(int32_t codec, absl::string_view packed, size_t bytes, std::string* out);

}  // namespace lodestone::worker
