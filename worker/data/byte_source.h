// A file's bytes, unpacked if it is a gz (one member or several) or a zstd (one
// frame or several).
//
// Not thread-safe. Owns the open file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/random_file.h"
#include "worker/data/unpacker.h"

namespace lodestone::worker {

class ByteSource {
 public:
  // NOT_FOUND or PERMISSION_DENIED as the system says; INVALID_ARGUMENT for a directory, a pipe and what else is no
  // plain file. `offset`: where in the file to begin, of one that is not packed.
  static absl::StatusOr<std::unique_ptr<ByteSource>> Open(const std::string& path, uint64_t offset = 0);
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  // Reads up to `size` bytes (at most 1 GiB); fewer only at the end of the file. DATA_LOSS, naming the file and the
  // offset within it, if a packed one is damaged, ends too early, or goes on with what is not packed.
  absl::StatusOr<size_t> Read(char* to, size_t size);

  // Bytes of the file itself that have been read: packed ones, where it is packed.
  uint64_t file_offset() const { return next_ - unread_.size(); }
  const std::string& path() const { return file_->path(); }

  // Whether a file is packed by gz or zstd, by its first bytes; one that cannot be read is not.
  static bool IsPacked(const std::string& path);

 private:
  ByteSource(std::unique_ptr<RandomFile> file, std::unique_ptr<Unpacker> unpacker, uint64_t offset);
  absl::StatusOr<size_t> ReadPlain(char* to, size_t size);
  absl::StatusOr<size_t> ReadPacked(char* to, size_t size);
  // Reads the file's next bytes into unread_, of which there are none; none come at its end.
  absl::Status Fill();

  const std::unique_ptr<RandomFile> file_;
  const std::unique_ptr<Unpacker> unpacker_;  // Null: it is not packed.
  std::vector<char> buffer_;
  absl::string_view unread_;  // In the buffer.
  uint64_t next_;             // In the file, behind them.
};

}  // namespace lodestone::worker
