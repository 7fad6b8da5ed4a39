// Small files that change while a process runs: tokens, identities. Somebody puts another one in place; the process
// takes it over without a restart.
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

// Whether everybody on this machine may read the file at `path`; false if there is none.
bool IsReadableByAll(const std::string& path);

class WatchedFile {
 public:
  explicit WatchedFile(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // What Refresh read last.
  const std::string& content() const { return content_; }

  // Reads the file. Whether the content is another than before; it stays as it is after an error. (The file is read
  // each time: sizes and times of files do not tell for certain that they are the same.)
  absl::StatusOr<bool> Refresh();

 private:
  const std::string path_;
  std::string content_;
  bool read_ = false;
};

}  // namespace lodestone
