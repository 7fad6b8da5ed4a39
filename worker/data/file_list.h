// The files that a configuration's paths and globs match.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lodestone::worker {

// The files that `patterns` (paths or globs) name: in the patterns' order, each glob's matches sorted. `option` is what
// errors call the list ("data.train"). NOT_FOUND, naming the pattern, if one has no match.
absl::StatusOr<std::vector<std::string>> ExpandFiles(absl::Span<const std::string> patterns, absl::string_view option);

// The label file that goes with IDX image file `images`: "labels-idx1" for "images-idx3" in its name. INVALID_ARGUMENT
// if the name has no such part, naming `option`, which then has to be set; NOT_FOUND if there is no such file.
absl::StatusOr<std::string> LabelFileOf(const std::string& images, absl::string_view option);

// The progress of reading a list of files.
class LoadProgress {
 public:
  using Callback = std::function<void(uint64_t done, uint64_t total)>;

  LoadProgress(const Callback& callback, absl::Span<const std::string> files);
  // The same of parts of files, so many bytes each.
  LoadProgress(const Callback& callback, std::vector<uint64_t> sizes);

  // `offset` bytes of the current file are read.
  void At(uint64_t offset) const;
  // The current file is read whole.
  void FileDone();

 private:
  const Callback& callback_;
  std::vector<uint64_t> sizes_;
  size_t file_ = 0;
  uint64_t before_ = 0;  // Bytes of the files before the current one.
  uint64_t total_ = 0;
};

}  // namespace lodestone::worker
