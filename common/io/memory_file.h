// A file in memory that has a path, for libraries that read files only and are to see what was checked before.
//
// Thread safety: one thread at a time; whoever reads the path may do so meanwhile.
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

  // Whoever opens the path from now on gets `content`, whole; who has it open keeps what he has. After an error it is
  // as it was.
  absl::Status Replace(absl::string_view content);

 private:
  explicit MemoryFile(int fd) : fd_(fd) {}

  const int fd_;
};

}  // namespace lodestone
