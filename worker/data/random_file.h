// A file that is read at any place.
//
// Thread-safe. Owns the open file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lodestone::worker {

class RandomFile {
 public:
  // NOT_FOUND or PERMISSION_DENIED as the system says; INVALID_ARGUMENT if it is no plain file: a pipe gives its bytes
  // once, and files are opened more than once.
  static absl::StatusOr<std::unique_ptr<RandomFile>> Open(const std::string& path);
  ~RandomFile();
  RandomFile(const RandomFile&) = delete;
  RandomFile& operator=(const RandomFile&) = delete;

  // Reads `size` bytes at `offset` into `to`, which is resized. DATA_LOSS if the file ends before that.
  absl::Status Read(uint64_t offset, size_t size, std::string* to) const;
  // The same into `to`, and how many there were: fewer than `size` only at the end of the file.
  absl::StatusOr<size_t> ReadUpTo(uint64_t offset, char* to, size_t size) const;

  uint64_t bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  RandomFile(std::string path, int fd, uint64_t bytes) : path_(std::move(path)), fd_(fd), bytes_(bytes) {}

  const std::string path_;
  const int fd_;
  const uint64_t bytes_;
};

}  // namespace lodestone::worker
