// An in-memory file with a path, for libraries that only read files: they read contents that were checked.
//
// Thread safety: one thread at a time; readers of the path may run at the same time.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lodestone {

class MemoryFile {
 public:
  // Fails as the system does that has no memory, no file descriptors or no /proc.
  static absl::StatusOr<std::unique_ptr<MemoryFile>> Make(absl::string_view content);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  // Good in this process, as long as this lives.
  std::string path() const;

  // Later opens of the path read all of `content`; files that are open keep the old contents. After an error it is
  // as it was.
  absl::Status Replace(absl::string_view content);

 private:
  explicit MemoryFile(int fd) : fd_(fd) {}

  const int fd_;
};

}  // namespace lodestone
