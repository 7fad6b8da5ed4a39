#include "server/rpc/process_identity.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "common/base/limits.h"
#include "common/base/version.h"

namespace lodestone::server {

namespace {

struct MemoryPages {
  uint64_t total = 0, resident = 0, shared = 0;
};

MemoryPages ReadPages() {
  std::ifstream statm("/proc/self/statm");
  MemoryPages pages;
  if (!(statm >> pages.total >> pages.resident >> pages.shared)) return {};
  return pages;
}

uint64_t BytesOf(uint64_t pages) { return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

uint64_t ResidentBytes() { return BytesOf(ReadPages().resident); }

uint64_t PrivateBytes() {
  const MemoryPages pages = ReadPages();
  return BytesOf(pages.resident - std::min(pages.resident, pages.shared));
}

void FillProcess(const ProcessIdentity& identity, v1::ServerStatus* status) {
  status->set_index(identity.index);
  status->set_address(identity.address);
  status->set_http(identity.http);
  status->set_incarnation(identity.incarnation);
  status->set_version(kCommit[0] == '\0' ? kVersion : VersionText());
  status->set_uptime_seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - identity.started).count());
  status->set_resident_bytes(ResidentBytes());
}

v1::ServerProgress ProgressOf(const v1::StatusResponse& status, size_t shards_bytes_max) {
  const v1::ServerStatus& server = status.server();
  v1::ServerProgress progress;
  if (status.shards_size() <= static_cast<int>(limits::kShardLoadsMax)) *progress.mutable_shards() = status.shards();
  if (progress.ByteSizeLong() > shards_bytes_max) progress.clear_shards();
  progress.set_resident_bytes(server.resident_bytes());
  progress.set_table_bytes(server.table_bytes());
  progress.set_pushes_per_second(server.pushes_per_second());
  progress.set_pulls_per_second(server.pulls_per_second());
  progress.set_pushes_refused(server.pushes_refused());
  progress.set_http(server.http());
  uint64_t lag_records = 0, rows = 0;
  for (const v1::FollowerStatus& follower : status.replication().followers()) lag_records += follower.lag_records();
  for (const v1::TableStatus& table : status.tables()) rows += table.rows();
  progress.set_lag_records(lag_records);
  *progress.mutable_stages() = server.push_stages();
  for (const v1::WaitStatus& wait : status.waits()) {
    if (!wait.has_waiter() && progress.waits_size() < static_cast<int>(limits::kWaitsMax)) *progress.add_waits() = wait;
  }
  progress.set_rows(rows);
  *progress.mutable_hot_keys() = status.hot_keys();
  return progress;
}

}  // namespace lodestone::server
