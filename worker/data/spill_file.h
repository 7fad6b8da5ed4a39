// What memory has no room for, in a file without a name on the worker's own disk: when the worker has ended, however it
// did, nothing is left of it. It grows at its end, and is read by a read-only mapping.
//
// Append and Map belong to one thread; the rest is thread-safe once Map was called. Owns the file and the mapping.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lodestone::worker {

class SpillFile {
 public:
  // In `folder`, which is made if it is missing. Errors name data.spill_dir and the folder.
  static absl::StatusOr<std::unique_ptr<SpillFile>> Create(const std::string& folder);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  // Adds the bytes, and returns their offset. RESOURCE_EXHAUSTED, naming the folder and the bytes, if it is full.
  absl::StatusOr<uint64_t> Append(std::span<const char> bytes);
  // Makes all that was added readable, at data(); what that gave before is void.
  absl::Status Map();

  const char* data() const { return data_; }  // Null before Map.
  uint64_t bytes() const { return bytes_; }
  const std::string& folder() const { return folder_; }

  // These bytes will be read soon: reads them ahead, and does not wait for it. REQUIRES: they are mapped.
  void WillRead(uint64_t offset, uint64_t bytes) const;

 private:
  SpillFile(std::string folder, int fd) : folder_(std::move(folder)), fd_(fd) {}
  void Unmap();

  const std::string folder_;
  const int fd_;
  uint64_t bytes_ = 0;
  const char* data_ = nullptr;
  uint64_t mapped_bytes_ = 0;
};

}  // namespace lodestone::worker
