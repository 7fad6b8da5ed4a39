// A file of results that grows by whole records.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/io/file.h"

namespace lodestone::worker {

class ResultsFile {
 public:
  // Opens it, or makes it; records follow what is there. `calls` must outlive it.
  static absl::StatusOr<ResultsFile> Open(const std::string& path, const FileCalls* calls);

  const std::string& path() const { return file_.path(); }

  // Cuts off what follows the last line end: a line that was not written to its end.
  absl::Status CutPartialLine();

  // Writes a record, or nothing of it; the next one may succeed again.
  absl::Status Append(std::string_view record);

 private:
  ResultsFile(File file, uint64_t size) : file_(std::move(file)), size_(size) {}

  // Cuts the file to its whole records.
  absl::Status Cut();

  File file_;
  uint64_t size_;         // Of its whole records.
  bool partial_ = false;  // More than those may be in it.
};

}  // namespace lodestone::worker
