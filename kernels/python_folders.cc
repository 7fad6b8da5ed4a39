#include "kernels/python_folders.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lodestone::kernels {
namespace {

constexpr int kLinksMax = 40;  // As the kernel follows.

bool IsThere(const std::string& file) {
  struct stat status;
  return stat(file.c_str(), &status) == 0;
}

// What the link says, as it says it; empty if `file` is none.
std::string TargetOf(const std::string& file) {
  char target[PATH_MAX];
  const ssize_t bytes = readlink(file.c_str(), target, sizeof target);
  return bytes < 0 ? "" : std::string(target, static_cast<size_t>(bytes));
}

}  // namespace

std::vector<std::string> PythonPrefixes(absl::string_view path) {
  std::vector<std::string> prefixes;
  for (const absl::string_view entry : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    std::string file = absl::StrCat(entry, "/python3");
    if (!IsThere(file)) continue;
    for (int links = 0; links <= kLinksMax; ++links) {
      const std::string folder = file.substr(0, file.rfind('/'));
      if (std::string prefix = folder + "/.."; !absl::c_linear_search(prefixes, prefix)) {
        prefixes.push_back(std::move(prefix));
      }
      const std::string target = TargetOf(file);
      if (target.empty()) break;
      file = target[0] == '/' ? target : absl::StrCat(folder, "/", target);
    }
  }
  return prefixes;
}

}  // namespace lodestone::kernels
