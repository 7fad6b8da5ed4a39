// The output of a program under a path that a user named. A regular file appears there once it is whole, in place of
// the one before; what a symbolic link names is replaced, and the link stays. A FIFO or a device, /dev/null for
// example, is written to as it stands, and so is a descriptor of this process (/dev/stdout, /dev/fd/N): where a shell's
// redirection has it, without a second beginning at the file's start.
//
// Thread safety: for one thread at a time.
//
// Ownership: closes what it has opened, and removes what it has begun and not published.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/file.h"

namespace lodestone {

class OutputFile {
 public:
  // Whether `path` can be written, for those that write it only at the end of long work: NOT_FOUND: its folder is
  // missing; FAILED_PRECONDITION: it is a folder, a socket or a block device. Opens nothing.
  static absl::Status Check(const std::string& path);
  // Begins PATH.tmp, beside the file that `path` or its links name, or opens what is no file; a FIFO waits for its
  // reader. Fails as Check. REQUIRES: one at a time for a path.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Open(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  absl::Status Write(std::string_view bytes) { return file_.Write(bytes); }
  // Gives the file its name; OK: the disk has it. Nothing of what is written to as it stands. Call once, at the end.
  absl::Status Publish();

  // Whether it is written to as it stands: what is written is gone.
  bool is_direct() const { return target_.empty(); }
  // The open file, for writes elsewhere than at its end. REQUIRES: not is_direct().
  const File& file() const { return file_; }

 private:
  OutputFile(File file, std::string target) : file_(std::move(file)), target_(std::move(target)) {}

  File file_;
  const std::string target_;  // Where the file is to appear; empty: it is written to as it stands.
  bool published_ = false;
};

}  // namespace lodestone
