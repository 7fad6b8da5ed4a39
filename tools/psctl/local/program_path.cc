#include "tools/psctl/local/program_path.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lodestone::psctl {

namespace fs = std::filesystem;

absl::StatusOr<std::string> OwnFolder() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) return absl::UnavailableError("/proc/self/exe cannot be read; give --ps-binary and --worker-binary");
  return self.parent_path().string();
}

absl::StatusOr<std::string> FindProgram(const std::string& psctl_folder, absl::string_view role,
                                        absl::string_view built) {
  const std::string installed_path = (fs::path(psctl_folder) / absl::StrCat("lodestone-", role)).string();
  const std::string built_path = (fs::path(psctl_folder) / "../.." / std::string(built)).lexically_normal().string();
  std::error_code error;
  for (const std::string& path : {installed_path, built_path}) {
    if (access(path.c_str(), X_OK) == 0 && fs::is_regular_file(path, error)) return path;
  }
  return absl::NotFoundError(absl::StrCat("there is no program lodestone-", role, ": neither ", installed_path, " nor ",
                                          built_path, "; give --", role, "-binary"));
}

}  // namespace lodestone::psctl
