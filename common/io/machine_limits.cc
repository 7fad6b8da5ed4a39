#include "common/io/machine_limits.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace lodestone {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// Where control groups are: the one tree of cgroup v2, or those of v1, one per controller below it.
constexpr const char* kGroups = "/sys/fs/cgroup";
constexpr const char* kUnifiedBesideV1 = "/sys/fs/cgroup/unified";  // The tree of v2, if there are both.

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

// What a control group allows, by its folder; nothing: it limits nothing.
using LimitOf = std::optional<uint64_t> (*)(const std::string& folder);

// The lowest limit of `group` ("/a/b") and of those above it in the tree `folder`. A container may see its own group at
// the top of the tree and not under the name that /proc gives: what is not there is passed over.
uint64_t LowestLimit(const std::string& folder, std::string group, LimitOf limit_of) {
  uint64_t lowest = kUnlimited;
  for (;;) {
    lowest = std::min(lowest, limit_of(folder + group).value_or(kUnlimited));
    if (group.empty()) return lowest;
    group.resize(group.rfind('/'));
  }
}

// The lowest limit of the control groups that this process is in. `controller`: the one of v1 whose limit it is.
uint64_t LimitOfGroups(const std::string& root, const std::string& controller, LimitOf unified, LimitOf v1) {
  uint64_t lowest = kUnlimited;
  for (const std::string& line : LinesOf(root + "/proc/self/cgroup")) {
    // "4:memory:/a/b" for v1, where several controllers are divided by commas; "0::/a/b" for v2.
    const std::vector<std::string> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || fields[2].empty() || fields[2][0] != '/') continue;
    const std::string group = fields[2] == "/" ? "" : fields[2];
    const std::vector<std::string> controllers = absl::StrSplit(fields[1], ',');
    if (fields[0] == "0" && fields[1].empty()) {
      lowest = std::min(
          {lowest, LowestLimit(root + kGroups, group, unified), LowestLimit(root + kUnifiedBesideV1, group, unified)});
    } else if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      lowest = std::min(lowest, LowestLimit(absl::StrCat(root, kGroups, "/", controller), group, v1));
    }
  }
  return lowest;
}

std::optional<uint64_t> Cores(uint64_t quota_us, uint64_t period_us) {
  if (quota_us == 0 || period_us == 0) return std::nullopt;
  return (quota_us - 1) / period_us + 1;
}

// "200000 100000": two cores; "max 100000": all.
std::optional<uint64_t> CoresOfUnified(const std::string& folder) {
  const std::vector<std::string> lines = LinesOf(folder + "/cpu.max");
  uint64_t quota_us = 0;
  uint64_t period_us = 0;
  if (lines.empty()) return std::nullopt;
  const std::vector<std::string> words = absl::StrSplit(lines[0], ' ', absl::SkipEmpty());
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &quota_us) || !absl::SimpleAtoi(words[1], &period_us)) {
    return std::nullopt;
  }
  return Cores(quota_us, period_us);
}

// cpu.cfs_quota_us is -1 without a limit.
std::optional<uint64_t> CoresOfV1(const std::string& folder) {
  return Cores(NumberIn(folder + "/cpu.cfs_quota_us").value_or(0), NumberIn(folder + "/cpu.cfs_period_us").value_or(0));
}

}  // namespace

uint64_t MachineMemoryBytes(const std::string& root) {
  return std::min(PhysicalBytes(root),
                  LimitOfGroups(
                      root, "memory", [](const std::string& folder) { return NumberIn(folder + "/memory.max"); },
                      [](const std::string& folder) { return NumberIn(folder + "/memory.limit_in_bytes"); }));
}

uint32_t MachineCores(const std::string& root) {
  const uint64_t allowed = LimitOfGroups(root, "cpu", CoresOfUnified, CoresOfV1);
  return static_cast<uint32_t>(std::min<uint64_t>(std::max(1u, std::thread::hardware_concurrency()), allowed));
}

}  // namespace lodestone
