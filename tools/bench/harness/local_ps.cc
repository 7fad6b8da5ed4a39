#include "tools/bench/harness/local_ps.h"

#include <linux/magic.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/status.h"
#include "common/config/config.h"
#include "httplib.h"
#include "tools/bench/harness/peer.h"
#include "tools/psctl/client/admin_client.h"

namespace lodestone::bench {
namespace {

namespace fs = std::filesystem;

constexpr char kCopiedMetric[] = "lodestone_copied_bytes_total";
constexpr int kPollMs = 5;
constexpr int kStartTimeoutMs = 60'000;

// Room for all clients of any row; few log lines; pushes for any depth that there is.
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
absl::StatusOr<std::string> AwaitAddress(psctl::Child* ps, const std::string& path) {
  for (int waited_ms = 0; waited_ms < kStartTimeoutMs; waited_ms += kPollMs) {
    if (ps->Reap([](absl::string_view) {})) return absl::UnavailableError(ps->Outcome());
    if (std::string address = ReadAddress(path); !address.empty()) return address;
    ps->ReadOutput([](absl::string_view) {});
    poll(nullptr, 0, kPollMs);
  }
  return absl::DeadlineExceededError(absl::StrCat("the ps took no calls within ", kStartTimeoutMs, " ms"));
}

// The value of the metric `name`, which has no labels, in a page of them.
std::optional<double> MetricIn(const std::string& page, const std::string& name) {
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    double value = 0;
    const std::pair<absl::string_view, absl::string_view> words = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    if (words.first == name && absl::SimpleAtod(words.second, &value)) return value;
  }
  return std::nullopt;
}

// An address of this machine that nobody listens at.
absl::StatusOr<std::string> FreeAddress() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool found = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int error = errno;
  if (fd >= 0) close(fd);
  if (!found) return absl::ErrnoToStatus(error, "looking for a free port");
  return absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
}

// Waits until each shard's follower counts. In a process of its own: clients are forked from this one, which gRPC does
// not survive where it was used before.
absl::Status AwaitFollowers(const std::string& address, uint32_t shards) {
  LODESTONE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Errand> errand, Errand::Start("a question", [&]() -> absl::StatusOr<std::string> {
        for (int waited_ms = 0; waited_ms < kStartTimeoutMs; waited_ms += kPollMs) {
          LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse status, psctl::FetchStatus(address, kStartTimeoutMs));
          if (status.cluster().shards_in_sync() == shards) return "";
          poll(nullptr, 0, kPollMs);
        }
        return absl::DeadlineExceededError(absl::StrCat("no followers within ", kStartTimeoutMs, " ms"));
      }));
  return errand->Wait().status();
}

fs::path ParentOr(const std::string& parent) {
  if (!parent.empty()) return parent;
  std::error_code error;
  const fs::path system = fs::temp_directory_path(error);
  return error ? "/tmp" : system;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalPs>> LocalPs::Start(const Options& options, uint32_t shards) {
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<TemporaryFolder> folder, TemporaryFolder::Create());
  const std::string config_file = folder->File("bench.yaml");
  const std::string address_file = folder->File("address");
  std::ofstream(config_file) << kConfig;
  // Clients stand for other machines, which share no memory.
  std::vector<std::string> sets = {"cluster.shared_memory=false"};
  if (shards > 0) sets.push_back(absl::StrCat("cluster.shards=", shards));
  sets.insert(sets.end(), options.sets.begin(), options.sets.end());
  LODESTONE_ASSIGN_OR_RETURN(v1::Config config, LoadConfig(config_file, sets));

  // One alone takes any port; two must know where the first is before it takes calls.
  const uint32_t servers = config.cluster().servers();
  if (servers > 1) {
    LODESTONE_ASSIGN_OR_RETURN(const std::string address, FreeAddress());
    sets.push_back(absl::StrCat("coordinator.address=", address));
  }
  std::vector<std::unique_ptr<psctl::Child>> children;
  std::vector<std::string> http_addresses;
  for (uint32_t index = 0; index < servers; ++index) {
    std::vector<std::string> argv = {options.ps_binary, "--config", config_file, "--address-file",
                                     absl::StrCat(address_file, index)};
    std::vector<std::string> own = sets;
    LODESTONE_ASSIGN_OR_RETURN(const std::string http_address, FreeAddress());
    own.push_back(absl::StrCat("server.http_listen=", http_address));
    http_addresses.push_back(http_address);
    if (servers > 1) own.push_back(absl::StrCat("server.index=", index));
    if (servers > 1 && index == 0)
      own.push_back(absl::StrReplaceAll(sets.back(), {{"coordinator.address", "server.listen"}}));
    for (const std::string& set : own) {
      argv.push_back("--set");
      argv.push_back(set);
    }
    LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<psctl::Child> child, psctl::Child::Start("ps", argv));
    children.push_back(std::move(child));
  }
  std::string address;
  for (uint32_t index = servers; index-- > 0;) {
    LODESTONE_ASSIGN_OR_RETURN(address, AwaitAddress(children[index].get(), absl::StrCat(address_file, index)));
  }
  config.mutable_coordinator()->set_address(address);
  if (config.cluster().replicas() > 1) LODESTONE_RETURN_IF_ERROR(AwaitFollowers(address, config.cluster().shards()));
  return std::unique_ptr<LocalPs>(
      new LocalPs(std::move(folder), std::move(config), std::move(http_addresses), std::move(children)));
}

std::string LocalPs::Ended() const {
  std::string ended;
  for (const auto& child : children_) {
    if (child->Reap([](absl::string_view) {})) absl::StrAppend(&ended, "; ", child->Outcome());
  }
  return ended;
}

std::optional<double> LocalPs::CopiedBytes() const {
  double sum = 0;
  for (const std::string& address : http_addresses_) {
    httplib::Client client("http://" + address);
    const httplib::Result result = client.Get("/metrics");
    if (!result || result->status != 200) return std::nullopt;
    const std::optional<double> copied = MetricIn(result->body, kCopiedMetric);
    if (!copied.has_value()) return std::nullopt;
    sum += *copied;
  }
  return sum;
}

std::vector<pid_t> LocalPs::pids() const {
  std::vector<pid_t> pids;
  for (const auto& child : children_) pids.push_back(child->pid());
  return pids;
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
