#include "tools/psctl/checkpoint_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/file.h"
#include "common/status.h"

namespace lodestone {

absl::StatusOr<CheckpointFolder> FindCheckpointFolder(const std::string& path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(path, error);
  if (error || !std::filesystem::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat(path, " is no folder"));
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(folder));
  const bool is_one = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return absl::StartsWith(name, "ps-") && std::filesystem::is_regular_file(folder / name, error);
  });
  if (!is_one) return CheckpointFolder{folder, ""};
  return CheckpointFolder{folder.parent_path(), folder.filename()};
}

std::string NumbersText(const std::vector<uint32_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    absl::StrAppend(&text, text.empty() ? "" : ", ", numbers[i]);
    if (last > i) absl::StrAppend(&text, last == i + 1 ? ", " : "-", numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace lodestone
