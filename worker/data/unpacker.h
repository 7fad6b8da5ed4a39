// The unpacking of gz and zstd files, as their bytes come.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lodestone::worker {

// The state of unpacking one file, of pieces one behind the other: members of a gz, frames of a zstd.
class Unpacker {
 public:
  // A file's first bytes that say whether it is packed.
  static constexpr size_t kMagicBytes = 4;
  // The unpacker for a file that begins with `magic`, so many bytes or all that it has; null: it is not packed.
  static std::unique_ptr<Unpacker> Of(absl::string_view magic);
  virtual ~Unpacker() = default;

  // Unpacks the file's next bytes, `packed`, which loses those that were taken, and gives the number of bytes written
  // to `to`, at most `size` (below 4 GiB). What finds no room there comes with the next call. DATA_LOSS, saying why but
  // not where, if the bytes are damaged; RESOURCE_EXHAUSTED without memory.
  virtual absl::StatusOr<size_t> Unpack(absl::string_view* packed, char* to, size_t size) = 0;

  // Whether a piece has begun and not ended, so that the file may not end here.
  virtual bool inside() const = 0;
  // "gz" or "zstd".
  virtual absl::string_view name() const = 0;
};

}  // namespace lodestone::worker
