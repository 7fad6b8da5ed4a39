#include "common/io/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/output_file.h"

namespace lodestone {
namespace {

absl::Status CallError(const std::string& path, const char* call) {
  return absl::ErrnoToStatus(errno, absl::StrCat(path, ": ", call));
}

// Repeats `call` while a signal interrupts it.
template <typename Call>
auto Uninterrupted(const Call& call) {
  while (true) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

// The folder that `path` is in.
std::string FolderOf(const std::string& path) {
  const size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

const FileCalls* SystemCalls() {
  static const FileCalls* const calls = new FileCalls(FileCalls::System());
  return calls;
}

}  // namespace

FileCalls FileCalls::System() {
  return {.open = [](const char* path, int flags, mode_t mode) { return ::open(path, flags, mode); },
          .writev = ::writev,
          .fdatasync = ::fdatasync,
          .ftruncate = ::ftruncate};
}

absl::StatusOr<File> File::Open(std::string path, int flags) { return Open(std::move(path), flags, SystemCalls()); }

absl::StatusOr<File> File::Open(std::string path, int flags, const FileCalls* calls) {
  const int fd = Uninterrupted([&] { return calls->open(path.c_str(), flags | O_CLOEXEC, 0666); });
  if (fd < 0) return CallError(path, "open");
  return File(std::move(path), calls, fd);
}

absl::StatusOr<File> File::Duplicate(std::string path, int fd) {
  const int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (duplicate < 0) return CallError(path, "dup");
  return File(std::move(path), SystemCalls(), duplicate);
}

File& File::operator=(File&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(calls_, other.calls_);
  std::swap(fd_, other.fd_);
  return *this;
}

File::~File() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<uint64_t> File::Size() const {
  struct stat info;
  if (fstat(fd_, &info) != 0) return CallError(path_, "fstat");
  return static_cast<uint64_t>(info.st_size);
}

absl::StatusOr<size_t> File::ReadAt(uint64_t offset, void* to, size_t size) const {
  size_t done = 0;
  while (done < size) {
    const ssize_t read = Uninterrupted(
        [&] { return pread(fd_, static_cast<char*>(to) + done, size - done, static_cast<off_t>(offset + done)); });
    if (read < 0) return CallError(path_, "pread");
    if (read == 0) break;
    done += static_cast<size_t>(read);
  }
  return done;
}

absl::Status File::Write(std::span<iovec> pieces) {
  while (true) {
    while (!pieces.empty() && pieces.front().iov_len == 0) pieces = pieces.subspan(1);
    if (pieces.empty()) return absl::OkStatus();
    const int count = static_cast<int>(std::min<size_t>(pieces.size(), IOV_MAX));
    const ssize_t result = Uninterrupted([&] { return calls_->writev(fd_, pieces.data(), count); });
    if (result < 0) return CallError(path_, "writev");
    if (result == 0) return absl::UnavailableError(absl::StrCat(path_, ": writev: nothing was written"));
    for (size_t written = static_cast<size_t>(result); written > 0;) {
      iovec& piece = pieces.front();
      const size_t taken = std::min(written, piece.iov_len);
      piece.iov_base = static_cast<char*>(piece.iov_base) + taken;
      piece.iov_len -= taken;
      written -= taken;
      if (piece.iov_len == 0) pieces = pieces.subspan(1);
    }
  }
}

absl::Status File::Write(std::string_view bytes) {
  iovec piece = {const_cast<char*>(bytes.data()), bytes.size()};
  return Write(std::span(&piece, 1));
}

absl::Status File::Sync() {
  if (Uninterrupted([&] { return calls_->fdatasync(fd_); }) != 0) return CallError(path_, "fdatasync");
  return absl::OkStatus();
}

absl::Status File::Truncate(uint64_t bytes) {
  if (Uninterrupted([&] { return calls_->ftruncate(fd_, static_cast<off_t>(bytes)); }) != 0) {
    return CallError(path_, "ftruncate");
  }
  return absl::OkStatus();
}

absl::StatusOr<VolumeBytes> VolumeBytesAt(const std::string& path) {
  struct statvfs volume;
  if (statvfs(path.c_str(), &volume) != 0) return CallError(path, "statvfs");
  return VolumeBytes{uint64_t{volume.f_blocks} * volume.f_frsize, uint64_t{volume.f_bavail} * volume.f_frsize};
}

bool OnOneVolume(const std::string& path, const std::string& other) {
  struct stat first, second;
  return stat(path.c_str(), &first) == 0 && stat(other.c_str(), &second) == 0 && first.st_dev == second.st_dev;
}

absl::Status SyncFolder(const std::string& path) {
  LODESTONE_ASSIGN_OR_RETURN(const File folder, File::Open(path, O_RDONLY | O_DIRECTORY));
  if (Uninterrupted([&] { return fsync(folder.fd()); }) != 0) return CallError(path, "fsync");
  return absl::OkStatus();
}

absl::Status MakeFolders(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(path, ": is not a folder"));
  }
  if (errno != ENOENT) return CallError(path, "stat");
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return CallError(path, "stat");
  const std::string parent = FolderOf(path.substr(0, end + 1));
  LODESTONE_RETURN_IF_ERROR(MakeFolders(parent));
  // Another process may create it at the same time.
  if (mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) return CallError(path, "mkdir");
  return SyncFolder(parent);
}

absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
  if (folder == nullptr) return CallError(path, "opendir");
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* const entry = readdir(folder.get());
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return CallError(path, "readdir");
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status RemoveFile(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return CallError(path, "unlink");
  return absl::OkStatus();
}

absl::Status PublishFile(File* file, const std::string& path) {
  LODESTONE_RETURN_IF_ERROR(file->Sync());
  if (std::rename(file->path().c_str(), path.c_str()) != 0) return CallError(path, "rename");
  return SyncFolder(FolderOf(path));
}

absl::Status ReplaceFile(const std::string& path, std::string_view content) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, OutputFile::Open(path));
  LODESTONE_RETURN_IF_ERROR(file->Write(content));
  return file->Publish();
}

}  // namespace lodestone
