// Small files that may be replaced while a process runs: tokens, identities.
//
// Thread safety: WatchedFile belongs to one thread at a time.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lodestone {

// The content of the file at `path`, at most limits::kSecretFileBytesMax bytes. Errors name the file.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path);

// True if every user of this machine may read the file at `path`; false if there is no file.
bool IsReadableByAll(const std::string& path);

class WatchedFile {
 public:
  explicit WatchedFile(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // What Refresh read last.
  const std::string& content() const { return content_; }

  // Reads the file. True if the content has changed; an error keeps the previous content. (The file is read each time:
  // equal sizes and times do not prove equal contents.)
  absl::StatusOr<bool> Refresh();

 private:
  const std::string path_;
  std::string content_;
  bool read_ = false;
};

}  // namespace lodestone
