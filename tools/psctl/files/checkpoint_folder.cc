#include "tools/psctl/files/checkpoint_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "server/checkpoint/manifest.h"

namespace lodestone::psctl {

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
  if (is_one) return CheckpointFolder{folder.parent_path(), folder.filename()};
  const std::filesystem::path within = folder / "checkpoints";  // Of a data folder.
  if (!std::filesystem::is_directory(within, error)) return CheckpointFolder{folder, ""};
  const auto beside = server::FindManifests(folder, "");  // An error: there are folders that are none of ours.
  return CheckpointFolder{beside.ok() && !beside->empty() ? folder : within, ""};
}

}  // namespace lodestone::psctl
