#include "common/io/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace lodestone {
namespace {

constexpr int kLinksMax = 40;  // As Linux.

// The descriptor of this process that a path stands for; nullopt: none.
std::optional<int> DescriptorOf(std::string_view path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  absl::string_view number(path.data(), path.size());
  int fd = -1;
  const bool is_one = absl::ConsumePrefix(&number, "/dev/fd/") || absl::ConsumePrefix(&number, "/proc/self/fd/");
  return is_one && absl::SimpleAtoi(number, &fd) ? std::optional(fd) : std::nullopt;
}

// What the links that begin at `path` end at, whether there is anything or not.
std::string FollowLinks(const std::string& path) {
  std::filesystem::path at = path;
  for (int i = 0; i < kLinksMax && !DescriptorOf(at.native()).has_value(); ++i) {
    std::error_code error;
    const std::filesystem::path next = std::filesystem::read_symlink(at, error);
    if (error) break;  // It is no link.
    at = at.parent_path() / next;
  }
  return at.string();
}

}  // namespace

absl::Status OutputFile::Check(const std::string& path) {
  const std::filesystem::path target = FollowLinks(path);
  if (DescriptorOf(target.native()).has_value()) return absl::OkStatus();
  struct stat info;
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode)) return absl::OkStatus();
    const char* const kind = S_ISDIR(info.st_mode)    ? "a folder"
                             : S_ISSOCK(info.st_mode) ? "a socket"
                             : S_ISBLK(info.st_mode)  ? "a block device"
                                                      : nullptr;
    if (kind != nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, ": is ", kind, ", and cannot be written as a file: name another"));
    }
  } else if (errno != ENOENT && errno != ENOTDIR) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": stat"));
  }
  const std::string folder = target.has_parent_path() ? target.parent_path().string() : ".";
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat(path, ": there is no folder ", folder, ": make it first"));
  }
  if (access(folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat(path, ": the folder ", folder, " cannot be written to"));
}

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Open(const std::string& path) {
  LODESTONE_RETURN_IF_ERROR(Check(path));
  const std::string target = FollowLinks(path);
  if (const std::optional<int> fd = DescriptorOf(target); fd.has_value()) {
    LODESTONE_ASSIGN_OR_RETURN(File file, File::Duplicate(path, *fd));
    return std::unique_ptr<OutputFile>(new OutputFile(std::move(file), ""));
  }
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    LODESTONE_ASSIGN_OR_RETURN(File file, File::Open(path, O_WRONLY));
    return std::unique_ptr<OutputFile>(new OutputFile(std::move(file), ""));
  }
  LODESTONE_ASSIGN_OR_RETURN(File file, File::Open(target + ".tmp", O_WRONLY | O_CREAT | O_TRUNC));
  return std::unique_ptr<OutputFile>(new OutputFile(std::move(file), target));
}

OutputFile::~OutputFile() {
  if (!is_direct() && !published_) unlink(file_.path().c_str());
}

absl::Status OutputFile::Publish() {
  if (is_direct()) return absl::OkStatus();
  LODESTONE_RETURN_IF_ERROR(PublishFile(&file_, target_));
  published_ = true;
  return absl::OkStatus();
}

}  // namespace lodestone
