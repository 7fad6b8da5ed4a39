#include "tools/psctl/checkpoint.h"

#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/host_port.h"
#include "common/options.h"
#include "common/status.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/manifest.h"
#include "tools/psctl/admin_client.h"
#include "tools/psctl/status_table.h"

namespace lodestone {
namespace {

std::string ToText(const std::string& name, const std::vector<CheckpointPart>& parts) {
  std::vector<std::vector<std::string>> rows = {{"server", "address", "shards", "bytes", "seconds", "folder"}};
  for (const CheckpointPart& part : parts) {
    std::vector<std::string> row = {absl::StrCat(part.server), part.address};
    if (part.written.ok()) {
      row.insert(row.end(), {absl::StrCat(part.written->shards()), WithUnit(part.written->bytes()),
                             absl::StrFormat("%.2f", part.written->seconds()), part.written->path()});
    } else {
      row.insert(row.end(), {"-", "-", "-", "failed"});
    }
    rows.push_back(std::move(row));
  }
  return absl::StrCat("checkpoint ", name, "\n", AlignedTable(rows));
}

std::string ToJson(const std::string& name, const std::vector<CheckpointPart>& parts) {
  nlohmann::ordered_json servers = nlohmann::ordered_json::array();
  for (const CheckpointPart& part : parts) {
    nlohmann::ordered_json server = {{"server", part.server}, {"address", part.address}};
    if (part.written.ok()) {
      server["path"] = part.written->path();
      server["shards"] = part.written->shards();
      server["bytes"] = part.written->bytes();
      server["seconds"] = part.written->seconds();
    } else {
      server["error"] = std::string(part.written.status().message());
    }
    servers.push_back(std::move(server));
  }
  const nlohmann::ordered_json all = {{"name", name}, {"servers", std::move(servers)}};
  return all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string ManualCheckpointName(absl::Time now) {
  return absl::StrCat("manual-", absl::FormatTime("%Y%m%d-%H%M%S", now, absl::UTCTimeZone()));
}

absl::StatusOr<std::vector<CheckpointPart>> CheckpointCluster(const std::string& address, const std::string& name,
                                                              int timeout_ms) {
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<ServerAddress> servers, FindServers(address, timeout_ms));
  std::vector<CheckpointPart> parts;
  for (const ServerAddress& server : servers) {
    parts.push_back({server.server, server.address, absl::UnknownError("was not asked")});
  }
  std::vector<std::thread> threads;
  for (CheckpointPart& part : parts) {
    threads.emplace_back([&] { part.written = RequestCheckpoint(part.address, name, timeout_ms); });
  }
  for (std::thread& thread : threads) thread.join();
  return parts;
}

int RunCheckpoint(CheckpointOptions options) {
  const auto fail = [](const std::string& message) { std::fprintf(stderr, "psctl checkpoint: %s\n", message.c_str()); };
  if (const auto address = ParseHostPort(options.address); !address.ok()) {
    fail(absl::StrCat("--address: ", address.status().message()));
    return kExitUsage;
  }
  if (options.name.empty()) options.name = ManualCheckpointName(absl::Now());
  if (const absl::Status name = CheckCheckpointName(options.name); !name.ok()) {
    fail(std::string(name.message()));
    return kExitUsage;
  }
  const auto parts = CheckpointCluster(options.address, options.name, options.timeout_ms);
  if (!parts.ok()) {
    fail(std::string(parts.status().message()));
    return 1;
  }
  std::fputs((options.json ? ToJson(options.name, *parts) : ToText(options.name, *parts)).c_str(), stdout);
  size_t failed = 0;
  for (const CheckpointPart& part : *parts) {
    if (part.written.ok()) continue;
    ++failed;
    fail(absl::StrCat("ps ", part.server, ": ", part.written.status().message()));
  }
  if (failed == 0) return 0;
  fail(absl::StrCat("checkpoint `", options.name, "` is not complete: ", failed, " of ", parts->size(),
                    " servers failed"));
  return 1;
}

}  // namespace lodestone
