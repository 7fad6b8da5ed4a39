// Files and folders, with errors that name the path, the call and the reason.
//
// Thread safety: a File is used by one thread at a time; the functions may be called by any.
//
// Ownership: a File closes itself; FileCalls outlive the Files that use them.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lodestone {

// The system calls that change a file, so that tests can make them fail. As in their manuals.
struct FileCalls {
  std::function<int(const char* path, int flags, mode_t mode)> open;
  std::function<ssize_t(int fd, const iovec* pieces, int count)> writev;
  std::function<int(int fd)> fdatasync;
  std::function<int(int fd, off_t bytes)> ftruncate;

  // The system's own.
  static FileCalls System();
};

// An open file.
class File {
 public:
  // As open(2), with O_CLOEXEC, and mode 0666 if it is created.
  static absl::StatusOr<File> Open(std::string path, int flags);
  static absl::StatusOr<File> Open(std::string path, int flags, const FileCalls* calls);

  // A duplicate of a descriptor that is open: with its position and flags, such as O_APPEND. `path`: its name in
  // errors.
  static absl::StatusOr<File> Duplicate(std::string path, int fd);

  File(File&& other) noexcept
      : path_(std::move(other.path_)), calls_(other.calls_), fd_(std::exchange(other.fd_, -1)) {}
  File& operator=(File&& other) noexcept;
  ~File();

  const std::string& path() const { return path_; }
  int fd() const { return fd_; }

  absl::StatusOr<uint64_t> Size() const;
  // Reads `size` bytes at `offset`, or as many as there are, and returns how many.
  absl::StatusOr<size_t> ReadAt(uint64_t offset, void* to, size_t size) const;

  // Writes all of it at the file's position, in as many calls as it takes; changes `pieces`. After an error a part of
  // it may be in the file.
  absl::Status Write(std::span<iovec> pieces);
  absl::Status Write(std::string_view bytes);
  // Waits until the disk has the content and the size.
  absl::Status Sync();
  absl::Status Truncate(uint64_t bytes);

 private:
  File(std::string path, const FileCalls* calls, int fd) : path_(std::move(path)), calls_(calls), fd_(fd) {}

  std::string path_;
  const FileCalls* calls_;
  int fd_;
};

// Bytes of the volume that a file or folder lies on: all, and those that are free for this process.
struct VolumeBytes {
  uint64_t total = 0;
  uint64_t free = 0;
};
absl::StatusOr<VolumeBytes> VolumeBytesAt(const std::string& path);
// Whether both lie on one volume; false if one cannot be looked at.
bool OnOneVolume(const std::string& path, const std::string& other);

// Waits until the disk has the names in a folder.
absl::Status SyncFolder(const std::string& path);

// Makes a folder and those above it that are missing, and waits until the disk has them.
absl::Status MakeFolders(const std::string& path);

// The names in a folder, sorted.
absl::StatusOr<std::vector<std::string>> ListFolder(const std::string& path);

// Removes a file; a missing one is none the worse.
absl::Status RemoveFile(const std::string& path);

// Puts `file`, which is written and lies in the same folder, in place of what is at `path`, if there is anything: after
// a crash there is either, whole. OK: the disk has it. For a path that a user named: OutputFile (output_file.h).
absl::Status PublishFile(File* file, const std::string& path);

// Publishes a file with that content, as an OutputFile (output_file.h). Writes to PATH.tmp first, and leaves none
// behind. REQUIRES: one call at a time for a path.
absl::Status ReplaceFile(const std::string& path, std::string_view content);

}  // namespace lodestone
