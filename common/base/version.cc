#include "common/base/version.h"

namespace lodestone {

std::string VersionText() {
  const std::string commit = kCommit;
  return std::string(kVersion) + " (" + (commit.empty() ? "commit unknown" : commit) + ")";
}

}  // namespace lodestone
