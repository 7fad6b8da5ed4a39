#include "tools/psctl/verbs/verify_live.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"

namespace lodestone::psctl {
namespace {

constexpr char kVerify[] = "verify";

using ShardReplicas = v1::VerifyReplicasResponse::ShardReplicas;

bool Differs(const ShardReplicas& shard) {
  return shard.missing().empty() && shard.owner_checksum() != shard.follower_checksum();
}

std::string ChecksumText(uint64_t checksum) { return absl::StrFormat("%016x", checksum); }

}  // namespace

LiveCount Count(const std::vector<LiveReplicas>& replicas) {
  LiveCount count;
  for (const LiveReplicas& of_server : replicas) {
    if (!of_server.compared.ok()) {
      ++count.failed;
      continue;
    }
    for (const ShardReplicas& shard : of_server.compared->shards()) {
      if (!shard.missing().empty()) {
        ++count.missing;
      } else if (Differs(shard)) {
        ++count.different;
      } else {
        ++count.equal;
      }
    }
  }
  return count;
}

absl::StatusOr<std::vector<LiveReplicas>> CompareReplicas(const VerifyLiveOptions& options) {
  return AskServers<LiveReplicas>(options.address, options.timeout_ms, [&](const std::string& server) {
    return RequestVerifyReplicas(server, options.timeout_ms);
  });
}

std::string ToText(const std::vector<LiveReplicas>& replicas, const Painter& paint) {
  Rows rows = {{"server", "address", "copies", "equal", "different", "not compared"}};
  std::string details;
  for (const LiveReplicas& of_server : replicas) {
    std::vector<Cell> row = {absl::StrCat(of_server.server), of_server.address};
    if (!of_server.compared.ok()) {
      row.insert(row.end(), {Cell("failed", Style::kBad), "-", "-", "-"});
      rows.push_back(std::move(row));
      continue;
    }
    const LiveCount count = Count({of_server});
    row.insert(row.end(), {absl::StrCat(of_server.compared->shards_size()), absl::StrCat(count.equal),
                           Cell(absl::StrCat(count.different), count.different > 0 ? Style::kBad : Style::kPlain),
                           Cell(absl::StrCat(count.missing), count.missing > 0 ? Style::kWarning : Style::kPlain)});
    rows.push_back(std::move(row));
    for (const ShardReplicas& shard : of_server.compared->shards()) {
      if (Differs(shard)) {
        absl::StrAppend(&details, "shard ", shard.shard(), " differs at version ", shard.version(), ": ps ",
                        of_server.server, " holds ", ChecksumText(shard.owner_checksum()), ", its follower ps ",
                        shard.follower(), " ", ChecksumText(shard.follower_checksum()), "\n");
      } else if (!shard.missing().empty()) {
        absl::StrAppend(&details, "shard ", shard.shard(), " of ps ", of_server.server,
                        " was not compared: ", shard.missing(), "\n");
      }
    }
  }
  return absl::StrCat(AlignedTable(rows, paint), details);
}

std::string ToJson(const std::vector<LiveReplicas>& replicas) {
  nlohmann::ordered_json servers = nlohmann::ordered_json::array();
  for (const LiveReplicas& of_server : replicas) {
    nlohmann::ordered_json server = {{"server", of_server.server}, {"address", of_server.address}};
    if (of_server.compared.ok()) {
      server["shards"] = nlohmann::ordered_json::array();
      for (const ShardReplicas& shard : of_server.compared->shards()) {
        nlohmann::ordered_json one = {{"shard", shard.shard()}};
        if (shard.missing().empty()) {
          one["version"] = shard.version();
          one["equal"] = !Differs(shard);
          one["owner_checksum"] = ChecksumText(shard.owner_checksum());
          one["follower_checksum"] = ChecksumText(shard.follower_checksum());
          one["follower"] = shard.follower();
        } else {
          one["missing"] = shard.missing();
        }
        server["shards"].push_back(std::move(one));
      }
    } else {
      server["error"] = std::string(of_server.compared.status().message());
    }
    servers.push_back(std::move(server));
  }
  const nlohmann::ordered_json all = {{"servers", std::move(servers)}};
  return IndentedJson(all);
}

int RunVerifyLive(const VerifyLiveOptions& options) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage(kVerify, address.message());
  }
  const auto replicas = CompareReplicas(options);
  if (!replicas.ok()) return Fail(kVerify, replicas.status());
  const Painter paint(WantsColor(STDOUT_FILENO));
  std::fputs((options.json ? ToJson(*replicas) : ToText(*replicas, paint)).c_str(), stdout);
  for (const LiveReplicas& of_server : *replicas) {
    if (of_server.compared.ok()) continue;
    Complain(kVerify, absl::StrCat("ps ", of_server.server, ": ", of_server.compared.status().message()));
  }
  const LiveCount count = Count(*replicas);
  return count.different + count.missing + count.failed == 0 ? kExitDone : kExitFailed;
}

}  // namespace lodestone::psctl
