#include "tools/bench/local_ps.h"

#include <linux/magic.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/vfs.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/config.h"
#include "common/status.h"

namespace lodestone::bench {
namespace {

namespace fs = std::filesystem;

constexpr int kPollMs = 5;
constexpr int kStartTimeoutMs = 60'000;

// Room for all clients of any row; few log lines; enough pushes for any depth.
constexpr char kConfig[] =
    "cluster: {name: bench, servers: 1, workers: 64}\n"
    "worker: {pushes_in_flight_max: 64}\n"
    "log: {level: WARN}\n";

// The text of an address file: "host:port" and a line end; empty until it is all there.
std::string ReadAddress(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return file.eof() ? "" : line;
}

// Waits until the ps has written where it is.
absl::StatusOr<std::string> AwaitAddress(Child* ps, const std::string& path) {
  for (int waited_ms = 0; waited_ms < kStartTimeoutMs; waited_ms += kPollMs) {
    if (ps->Reap([](absl::string_view) {})) return absl::UnavailableError(ps->Outcome());
    if (std::string address = ReadAddress(path); !address.empty()) return address;
    ps->ReadOutput([](absl::string_view) {});
    poll(nullptr, 0, kPollMs);
  }
  return absl::DeadlineExceededError(absl::StrCat("the ps took no calls within ", kStartTimeoutMs, " ms"));
}

fs::path ParentOr(const std::string& parent) {
  if (!parent.empty()) return parent;
  std::error_code error;
  const fs::path system = fs::temp_directory_path(error);
  return error ? "/tmp" : system;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalPs>> LocalPs::Start(const Options& options, uint32_t shards) {
  LODESTONE_ASSIGN_OR_RETURN(const std::unique_ptr<TemporaryFolder> folder, TemporaryFolder::Create());
  const std::string config_file = folder->File("bench.yaml");
  const std::string address_file = folder->File("address");
  std::ofstream(config_file) << kConfig;
  std::vector<std::string> sets;
  if (shards > 0) sets.push_back(absl::StrCat("cluster.shards=", shards));
  sets.insert(sets.end(), options.sets.begin(), options.sets.end());
  LODESTONE_ASSIGN_OR_RETURN(v1::Config config, LoadConfig(config_file, sets));

  std::vector<std::string> argv = {options.ps_binary, "--config", config_file, "--address-file", address_file};
  for (const std::string& set : sets) {
    argv.push_back("--set");
    argv.push_back(set);
  }
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<Child> child, Child::Start("ps", argv));
  LODESTONE_ASSIGN_OR_RETURN(const std::string address, AwaitAddress(child.get(), address_file));
  config.mutable_coordinator()->set_address(address);
  return std::unique_ptr<LocalPs>(new LocalPs(std::move(config), std::move(child)));
}

absl::StatusOr<std::unique_ptr<TemporaryFolder>> TemporaryFolder::Create(const std::string& parent) {
  std::string name = (ParentOr(parent) / "lodestone-bench-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("making a folder ", name));
  return std::unique_ptr<TemporaryFolder>(new TemporaryFolder(name));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string FilesystemOf(const std::string& parent) {
  struct statfs info;
  if (statfs(ParentOr(parent).c_str(), &info) != 0) return "unknown";
  switch (info.f_type) {
    case EXT4_SUPER_MAGIC:
      return "ext4";
    case XFS_SUPER_MAGIC:
      return "xfs";
    case BTRFS_SUPER_MAGIC:
      return "btrfs";
    case OVERLAYFS_SUPER_MAGIC:
      return "overlay";
    case TMPFS_MAGIC:
      return "tmpfs";
    default:
      return absl::StrCat("0x", absl::Hex(info.f_type));
  }
}

}  // namespace lodestone::bench
