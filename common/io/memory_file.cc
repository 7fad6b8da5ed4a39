#include "common/io/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone {
namespace {

// A file of its own with `content`.
absl::StatusOr<int> Fill(absl::string_view content) {
  const int fd = memfd_create("lodestone", MFD_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, "memfd_create");
  while (!content.empty()) {
    const ssize_t bytes = write(fd, content.data(), content.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) {
      const absl::Status status = absl::ErrnoToStatus(errno, "write to memory");
      close(fd);
      return status;
    }
    content.remove_prefix(static_cast<size_t>(bytes));
  }
  return fd;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MemoryFile>> MemoryFile::Make(absl::string_view content) {
  LODESTONE_ASSIGN_OR_RETURN(const int fd, Fill(content));
  std::unique_ptr<MemoryFile> file(new MemoryFile(fd));
  if (access(file->path().c_str(), R_OK) == 0) return file;
  return absl::ErrnoToStatus(errno, file->path());
}

MemoryFile::~MemoryFile() { close(fd_); }

std::string MemoryFile::path() const { return absl::StrCat("/proc/self/fd/", fd_); }

absl::Status MemoryFile::Replace(absl::string_view content) {
  LODESTONE_ASSIGN_OR_RETURN(const int fresh, Fill(content));
  const int replaced = dup3(fresh, fd_, O_CLOEXEC);
  const absl::Status status = replaced < 0 ? absl::ErrnoToStatus(errno, "dup3") : absl::OkStatus();
  close(fresh);
  return status;
}

}  // namespace lodestone
