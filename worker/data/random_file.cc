#include "worker/data/random_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace lodestone::worker {

absl::StatusOr<std::unique_ptr<RandomFile>> RandomFile::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, path);
  struct stat status = {};
  if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(path, " is no plain file"));
  }
  return std::unique_ptr<RandomFile>(new RandomFile(path, fd, static_cast<uint64_t>(status.st_size)));
}

RandomFile::~RandomFile() { close(fd_); }

absl::Status RandomFile::Read(uint64_t offset, size_t size, std::string* to) const {
  to->resize(size);
  size_t done = 0;
  while (done < size) {
    const ssize_t count = pread(fd_, to->data() + done, size - done, static_cast<off_t>(offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return absl::ErrnoToStatus(errno, path_);
    if (count == 0) {
      return absl::DataLossError(
          absl::StrCat(path_, " ends at byte ", offset + done, ", in the middle of what it should have"));
    }
    done += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

}  // namespace lodestone::worker
