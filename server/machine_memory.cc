#include "server/machine_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lodestone::server {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// A tree of control groups, and the file in which a group's memory limit stands.
struct Hierarchy {
  const char* folder;
  const char* file;
};
constexpr Hierarchy kUnified = {"/sys/fs/cgroup", "memory.max"};
constexpr Hierarchy kUnifiedBesideV1 = {"/sys/fs/cgroup/unified", "memory.max"};
constexpr Hierarchy kV1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes"};

std::vector<std::string> LinesOf(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// The number that the file consists of.
std::optional<uint64_t> NumberIn(const std::string& path) {
  const std::vector<std::string> lines = LinesOf(path);
  uint64_t number = 0;
  if (lines.empty() || !absl::SimpleAtoi(lines[0], &number)) return std::nullopt;
  return number;
}

uint64_t PhysicalBytes(const std::string& root) {
  for (const std::string& line : LinesOf(root + "/proc/meminfo")) {
    std::istringstream words(line);
    std::string name;
    uint64_t kib = 0;
    if (words >> name >> kib && name == "MemTotal:") return kib << 10;
  }
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_bytes) : 0;
}

// The lowest limit of `group` ("/a/b") and of those above it. A container may see its own group at the top of the tree
// and not under the name that /proc gives: what is not there is passed over.
uint64_t LowestLimit(const std::string& root, const Hierarchy& hierarchy, std::string group) {
  uint64_t lowest = kUnlimited;
  for (;;) {
    const std::string path = absl::StrCat(root, hierarchy.folder, group, "/", hierarchy.file);
    lowest = std::min(lowest, NumberIn(path).value_or(kUnlimited));
    if (group.empty()) return lowest;
    group.resize(group.rfind('/'));
  }
}

}  // namespace

uint64_t MachineMemoryBytes(const std::string& root) {
  uint64_t bytes = PhysicalBytes(root);
  for (const std::string& line : LinesOf(root + "/proc/self/cgroup")) {
    // "4:memory:/a/b" for v1, where several controllers are divided by commas; "0::/a/b" for v2.
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || fields[2].empty() || fields[2][0] != '/') continue;
    const std::string group = fields[2] == "/" ? "" : fields[2];
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    if (fields[0] == "0" && fields[1].empty()) {
      bytes = std::min({bytes, LowestLimit(root, kUnified, group), LowestLimit(root, kUnifiedBesideV1, group)});
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      bytes = std::min(bytes, LowestLimit(root, kV1, group));
    }
  }
  return bytes;
}

}  // namespace lodestone::server
