#include "worker/data/file_list.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lodestone::worker {
namespace {

bool Exists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ExpandFiles(absl::Span<const std::string> patterns, absl::string_view option) {
  std::vector<std::string> files;
  for (const std::string& pattern : patterns) {
    if (Exists(pattern)) {
      files.push_back(pattern);
      continue;
    }
    glob_t matches = {};
    const int result = glob(pattern.c_str(), GLOB_TILDE, nullptr, &matches);
    std::vector<std::string> found;
    if (result == 0) found.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
    globfree(&matches);
    if (result != 0) return absl::NotFoundError(absl::StrCat(option, ": no file matches \"", pattern, "\""));
    std::sort(found.begin(), found.end());
    files.insert(files.end(), found.begin(), found.end());
  }
  return files;
}

absl::StatusOr<std::string> LabelFileOf(const std::string& images, absl::string_view option) {
  // Literals, so that data() ends with a zero.
  constexpr std::pair<absl::string_view, absl::string_view> kNames[] = {{"images-idx3", "labels-idx1"},
                                                                        {"images.idx3", "labels.idx1"}};
  for (const auto& [image_name, label_name] : kNames) {
    const size_t at = images.rfind(image_name.data());
    if (at == std::string::npos) continue;
    std::string labels = images;
    labels.replace(at, image_name.size(), label_name.data());
    if (Exists(labels)) return labels;
    // One may be packed and the other not.
    std::string other = absl::EndsWith(labels, ".gz") ? labels.substr(0, labels.size() - 3) : labels + ".gz";
    if (Exists(other)) return other;
    return absl::NotFoundError(
        absl::StrCat(images, ": its label file ", labels, " is not there; ", option, " can name another"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      images, ": the name has no \"images-idx3\" that the label file's name ", "could be derived from; set ", option));
}

LoadProgress::LoadProgress(const Callback& callback, absl::Span<const std::string> files) : callback_(callback) {
  for (const std::string& file : files) {
    struct stat info;
    sizes_.push_back(stat(file.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0);
    total_ += sizes_.back();
  }
}

LoadProgress::LoadProgress(const Callback& callback, std::vector<uint64_t> sizes)
    : callback_(callback), sizes_(std::move(sizes)) {
  for (const uint64_t size : sizes_) total_ += size;
}

void LoadProgress::At(uint64_t offset) const {
  if (callback_ != nullptr) callback_(std::min(before_ + offset, total_), total_);
}

void LoadProgress::FileDone() {
  before_ += sizes_[file_++];
  At(0);
}

}  // namespace lodestone::worker
