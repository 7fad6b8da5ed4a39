#include "worker/data/random_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace lodestone::worker {

absl::StatusOr<std::unique_ptr<RandomFile>> RandomFile::Open(const std::string& path) {
  struct stat info = {};
  // Before it is opened: a pipe would wait for its writer.
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (S_ISDIR(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": is a directory, not a file"));
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": is no plain file, and data is read more than once; write it to a file, and name that"));
  }
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  if (fstat(fd, &info) != 0) {
    const absl::Status status = absl::ErrnoToStatus(errno, path);
    close(fd);
    return status;
  }
  return std::unique_ptr<RandomFile>(new RandomFile(path, fd, static_cast<uint64_t>(info.st_size)));
}

RandomFile::~RandomFile() { close(fd_); }

absl::StatusOr<size_t> RandomFile::ReadUpTo(uint64_t offset, char* to, size_t size) const {
  size_t done = 0;
  while (done < size) {
    const ssize_t count = pread(fd_, to + done, size - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, path_);
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  return done;
}

absl::Status RandomFile::Read(uint64_t offset, size_t size, std::string* to) const {
  to->resize(size);
  LODESTONE_ASSIGN_OR_RETURN(const size_t count, ReadUpTo(offset, to->data(), size));
  if (count == size) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path_, " ends at byte ", offset + count, ", in the middle of what it should have"));
}

}  // namespace lodestone::worker
