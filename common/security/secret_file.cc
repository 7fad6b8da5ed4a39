#include "common/security/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/io/file.h"

namespace lodestone {

absl::StatusOr<std::string> ReadSecretFile(const std::string& path) {
  LODESTONE_ASSIGN_OR_RETURN(const File file, File::Open(path, O_RDONLY | O_NONBLOCK));
  std::string content(limits::kSecretFileBytesMax + 1, '\0');
  LODESTONE_ASSIGN_OR_RETURN(const size_t bytes, file.ReadAt(0, content.data(), content.size()));
  if (bytes > limits::kSecretFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": longer than ", limits::kSecretFileBytesMax, " bytes"));
  }
  content.resize(bytes);
  return content;
}

bool IsReadableByAll(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0 && (found.st_mode & S_IROTH) != 0;
}

absl::StatusOr<bool> WatchedFile::Refresh() {
  LODESTONE_ASSIGN_OR_RETURN(std::string content, ReadSecretFile(path_));
  if (read_ && content == content_) return false;
  content_ = std::move(content);
  read_ = true;
  return true;
}

}  // namespace lodestone
