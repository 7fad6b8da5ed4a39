#include "tests/simulation/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace lodestone::simulation {
namespace {

constexpr uint64_t kSectorBytes = 512;

uint64_t SizeOf(int fd) {
  struct stat info;
  LODESTONE_CHECK(fstat(fd, &info) == 0);
  return static_cast<uint64_t>(info.st_size);
}

}  // namespace

FileCalls Disk::CallsOf(const ProcessRef& process) {
  return {.open = [this, process](const char* path, int flags,
                                  mode_t mode) { return OpenFile(process, path, flags, mode); },
          .writev = [this](int fd, const iovec* pieces, int count) { return Write(fd, pieces, count); },
          .fdatasync = [this](int fd) { return Sync(fd); },
          .ftruncate = [this](int fd, off_t bytes) { return Truncate(fd, bytes); }};
}

int Disk::OpenFile(const ProcessRef& process, const char* path, int flags, mode_t mode) {
  if (!process->alive && (flags & O_CREAT) != 0) return ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  const int fd = ::open(path, flags, mode);
  if (fd >= 0) open_[fd] = {path, process};
  if (fd >= 0 && (flags & O_CREAT) != 0) synced_.try_emplace(path, 0);
  return fd;
}

ssize_t Disk::Write(int fd, const iovec* pieces, int count) {
  const auto file = open_.find(fd);
  ssize_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += static_cast<ssize_t>(pieces[i].iov_len);
  if (file == open_.end() || !file->second.process->alive) return bytes;
  if (doomed_ != file->second.process) return ::writev(fd, pieces, count);
  doomed_ = nullptr;
  uint64_t left = kernel_->Draw(static_cast<uint64_t>(bytes) + 1);
  kernel_->Trace(
      absl::StrCat(file->second.process->name, " is killed within a write, after ", left, " of ", bytes, " bytes"));
  for (int i = 0; i < count && left > 0; ++i) {
    const size_t part = std::min<uint64_t>(left, pieces[i].iov_len);
    LODESTONE_CHECK(::write(fd, pieces[i].iov_base, part) == static_cast<ssize_t>(part));
    left -= part;
  }
  std::exchange(death_, nullptr)();
  return bytes;
}

int Disk::Sync(int fd) {
  const auto file = open_.find(fd);
  if (file == open_.end()) return 0;
  const Open of = file->second;
  if (!of.process->alive) return 0;
  const uint64_t bytes = SizeOf(fd);  // What is written meanwhile need not be there.
  // Recovery syncs on a thread of its own, and is waited for.
  if (kernel_->in_fiber() && sync_us_ > 0) kernel_->Sleep(kernel_->Between(sync_us_ / 10, sync_us_));
  if (of.process->alive) synced_[of.path] = std::max(synced_[of.path], bytes);
  return 0;
}

int Disk::Truncate(int fd, off_t bytes) {
  const auto file = open_.find(fd);
  if (file == open_.end() || !file->second.process->alive) return 0;
  auto& synced = synced_[file->second.path];
  synced = std::min<uint64_t>(synced, static_cast<uint64_t>(bytes));
  return ::ftruncate(fd, bytes);
}

void Disk::LoseUnsynced(const std::string& folder) {
  for (auto& [path, synced] : synced_) {
    if (!absl::StartsWith(path, folder + "/")) continue;
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) continue;  // It was removed.
    const uint64_t size = SizeOf(fd);
    if (size > synced) {
      const uint64_t kept = synced + kernel_->Draw(size - synced + 1);
      const uint64_t kind = kernel_->Draw(4);
      kernel_->Trace(absl::StrCat("of ", path.substr(folder_.size() + 1), " the disk had ", synced, " of ", size,
                                  " bytes; way ", kind, " ", kept));
      if (kind == 0) {
        LODESTONE_CHECK(::ftruncate(fd, static_cast<off_t>(synced)) == 0);
      } else if (kind == 1) {
        LODESTONE_CHECK(::ftruncate(fd, static_cast<off_t>(kept)) == 0);
      } else {  // The size was on the disk, some sectors were not.
        for (uint64_t at = synced; at < size;) {
          const uint64_t end = std::min(size, (at / kSectorBytes + 1) * kSectorBytes);
          // The last way: all from somewhere on is missing.
          if (kind == 2 ? kernel_->Chance(0.5) : at >= kept) {
            const std::string zeros(end - at, '\0');
            LODESTONE_CHECK(::pwrite(fd, zeros.data(), zeros.size(), static_cast<off_t>(at)) ==
                            static_cast<ssize_t>(zeros.size()));
          }
          at = end;
        }
      }
    }
    synced = SizeOf(fd);
    ::close(fd);
  }
}

}  // namespace lodestone::simulation
