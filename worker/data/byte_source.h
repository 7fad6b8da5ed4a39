// A file's bytes, unpacked if it is a gz (one member or several) or a zstd (one
// frame or several).
//
// Not thread-safe. Owns the open file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace lodestone::worker {

class ByteSource {
 public:
  // NOT_FOUND or PERMISSION_DENIED as the system says; INVALID_ARGUMENT for a directory.
  // `offset`: where in the file to begin, of one that is not packed.
  static absl::StatusOr<std::unique_ptr<ByteSource>> Open(const std::string& path, uint64_t offset = 0);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  // Reads up to `size` bytes (at most 1 GiB); fewer only at the end of the file. DATA_LOSS, naming the file and the
  // offset within it, if a packed one is damaged or ends too early.
  absl::StatusOr<size_t> Read(char* to, size_t size);

  // Bytes of the file itself that have been read: packed ones, where it is packed.
  uint64_t file_offset() const;
  const std::string& path() const { return path_; }

  // Whether a file is packed by gz or zstd, by its first bytes; one that cannot be read is not.
  static bool IsPacked(const std::string& path);

 private:
  struct Zstd;

  ByteSource(std::string path, void* file);
  absl::StatusOr<size_t> ReadFile(char* to, size_t size);
  absl::StatusOr<size_t> ReadZstd(char* to, size_t size);

  const std::string path_;
  void* const file_;            // zlib's gzFile, which reads other files as they are.
  std::unique_ptr<Zstd> zstd_;  // Null: it is no zstd.
};

}  // namespace lodestone::worker
