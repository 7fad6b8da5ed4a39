#include "tests/chaos/small_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lodestone::chaos {

absl::StatusOr<std::unique_ptr<SmallDisk>> SmallDisk::Mount(const std::string& folder, uint64_t megabytes) {
  const std::string options = absl::StrCat("size=", megabytes, "m");
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("chaos", folder.c_str(), "tmpfs", 0, options.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("a small disk at ", folder));
  }
  return std::unique_ptr<SmallDisk>(new SmallDisk(folder));
}

SmallDisk::~SmallDisk() { umount2(folder_.c_str(), MNT_DETACH); }

absl::Status SmallDisk::Fill(uint64_t spare_bytes) {
  struct statvfs room {};
  if (statvfs(folder_.c_str(), &room) != 0) return absl::ErrnoToStatus(errno, folder_);
  const uint64_t free_bytes = uint64_t{room.f_bavail} * room.f_frsize;
  const int fd = open(Balloon().c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, Balloon());
  // Others write meanwhile: what is left may be less by now.
  for (uint64_t bytes = free_bytes - std::min(free_bytes, spare_bytes); bytes > 0; bytes /= 2) {
    if (fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0) break;
  }
  close(fd);
  return absl::OkStatus();
}

absl::Status SmallDisk::Free() {
  if (unlink(Balloon().c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, Balloon());
}

}  // namespace lodestone::chaos
