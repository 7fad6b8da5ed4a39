#include "worker/data/spill_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "common/telemetry/log.h"

namespace lodestone::worker {
namespace {

// An open file in the folder that has no name, where the file system knows such files; else one whose name is removed
// at once. Negative: errno says why.
int OpenNameless(const std::string& folder) {
  const int fd = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT)) return fd;
  std::string name = absl::StrCat(folder, "/lodestone-spill-XXXXXX");
  const int named = mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) unlink(name.c_str());
  return named;
}

void WarnIfInMemory(const std::string& folder, int fd) {
  struct statfs info = {};
  if (fstatfs(fd, &info) != 0 || (info.f_type != TMPFS_MAGIC && info.f_type != RAMFS_MAGIC)) return;
  LODESTONE_LOG(WARN, "data", "data.spill_dir lies in memory (tmpfs) and saves none: name a folder on a disk folder={}",
                folder);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpillFile>> SpillFile::Create(const std::string& folder) {
  LODESTONE_RETURN_IF_ERROR(Annotate(MakeFolders(folder), "data.spill_dir"));
  const int fd = OpenNameless(folder);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("data.spill_dir: no file can be made in ", folder));
  WarnIfInMemory(folder, fd);
  return std::unique_ptr<SpillFile>(new SpillFile(folder, fd));
}

SpillFile::~SpillFile() {
  Unmap();
  close(fd_);
}

void SpillFile::Unmap() {
  if (data_ != nullptr) munmap(const_cast<char*>(data_), mapped_bytes_);
  data_ = nullptr;
}

absl::StatusOr<uint64_t> SpillFile::Append(std::span<const char> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(bytes_ + done));
    if (count < 0 && errno == EINTR) continue;
    if (count > 0) {
      done += static_cast<size_t>(count);
      continue;
    }
    const absl::Status why = absl::ErrnoToStatus(count == 0 ? ENOSPC : errno, "write");
    return absl::ResourceExhaustedError(absl::StrCat(
        "data.spill_dir: ", folder_, " takes no more than the ", bytes_ + done, " bytes of samples that are in it (",
        why.message(), "); name a folder with more room, raise data.memory_max_bytes or use more workers"));
  }
  const uint64_t offset = bytes_;
  bytes_ += bytes.size();
  return offset;
}

absl::Status SpillFile::Map() {
  Unmap();
  if (bytes_ == 0) return absl::OkStatus();
  void* const data = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd_, 0);
  if (data == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, absl::StrCat("data.spill_dir: mapping ", bytes_, " bytes in ", folder_));
  }
  // Around a page that is missing the kernel would read megabytes, and evict as many that are needed. A worker says
  // what it will read (WillRead).
  (void)madvise(data, bytes_, MADV_RANDOM);
  data_ = static_cast<const char*>(data);
  mapped_bytes_ = bytes_;
  return absl::OkStatus();
}

void SpillFile::WillRead(uint64_t offset, uint64_t bytes) const {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset / page * page;
  // That it fails costs no more than the time that is waited for the disk.
  (void)madvise(const_cast<char*>(data_) + begin, offset + bytes - begin, MADV_WILLNEED);
}

}  // namespace lodestone::worker
