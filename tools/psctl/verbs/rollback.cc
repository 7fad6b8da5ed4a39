#include "tools/psctl/verbs/rollback.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "CLI/App.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/manifest.h"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/text/table.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

constexpr char kRollback[] = "rollback";

using ShardRollback = v1::RollbackResponse::ShardRollback;

// "7" or "7-12": one number of all shards.
std::string RangeOf(const v1::RollbackResponse& done, uint64_t (ShardRollback::*number)() const) {
  if (done.shards().empty()) return "-";
  uint64_t least = UINT64_MAX, most = 0;
  for (const ShardRollback& shard : done.shards()) {
    least = std::min(least, (shard.*number)());
    most = std::max(most, (shard.*number)());
  }
  return least == most ? absl::StrCat(least) : absl::StrCat(least, "-", most);
}

std::string ToText(const RollbackOptions& options, const std::vector<RollbackPart>& parts, const Painter& paint) {
  Rows rows = {{"server", "address", "shards", "version before", "version after", "holds version", "seconds"}};
  for (const RollbackPart& part : parts) {
    std::vector<Cell> row = {absl::StrCat(part.server), part.address};
    if (part.done.ok()) {
      row.insert(
          row.end(),
          {absl::StrCat(part.done->shards_size()), RangeOf(*part.done, &ShardRollback::version_before),
           RangeOf(*part.done, &ShardRollback::version_after), RangeOf(*part.done, &ShardRollback::version_restored),
           absl::StrFormat("%.2f", part.done->seconds())});
    } else {
      row.insert(row.end(), {Cell("failed", Style::kBad), "-", "-", "-", "-"});
    }
    rows.push_back(std::move(row));
  }
  return absl::StrCat("table ", options.table, " goes back to ", options.to, "\n", AlignedTable(rows, paint));
}

std::string ToJson(const RollbackOptions& options, const std::vector<RollbackPart>& parts) {
  nlohmann::ordered_json servers = nlohmann::ordered_json::array();
  for (const RollbackPart& part : parts) {
    nlohmann::ordered_json server = {{"server", part.server}, {"address", part.address}};
    if (part.done.ok()) {
      server["seconds"] = part.done->seconds();
      server["shards"] = nlohmann::ordered_json::array();
      for (const ShardRollback& shard : part.done->shards()) {
        server["shards"].push_back({{"shard", shard.shard()},
                                    {"version_before", shard.version_before()},
                                    {"version_after", shard.version_after()},
                                    {"version_restored", shard.version_restored()}});
      }
    } else {
      server["error"] = std::string(part.done.status().message());
    }
    servers.push_back(std::move(server));
  }
  const nlohmann::ordered_json all = {{"table", options.table}, {"to", options.to}, {"servers", std::move(servers)}};
  return IndentedJson(all);
}

// Says what went wrong, and returns the exit code.
int Judge(const RollbackOptions& options, const std::vector<RollbackPart>& parts) {
  size_t failed = 0;
  int shards = 0;
  for (const RollbackPart& part : parts) {
    if (part.done.ok()) {
      shards += part.done->shards_size();
      continue;
    }
    ++failed;
    Complain(kRollback, absl::StrCat("ps ", part.server, ": ", part.done.status().message()));
  }
  if (failed > 0) {
    Complain(kRollback,
             absl::StrCat(failed, " of ", parts.size(), " servers failed: other shards may have gone back. It is safe ",
                          "to run this again"));
    return 1;
  }
  if (shards > 0) return 0;
  Complain(kRollback, absl::StrCat("nothing has changed: no shard that holds table `", options.table,
                                   "` has come to version ", options.to));
  return 1;
}

}  // namespace

absl::StatusOr<v1::RollbackRequest> MakeRollbackRequest(const std::string& table, const std::string& to) {
  v1::RollbackRequest request;
  request.set_table(table);
  if (!to.empty() && std::all_of(to.begin(), to.end(), absl::ascii_isdigit)) {
    uint64_t version = 0;
    if (!absl::SimpleAtoi(to, &version)) return absl::InvalidArgumentError(absl::StrCat(to, " is no version"));
    request.set_version(version);
    return request;
  }
  if (!server::IsPeriodic(to)) LODESTONE_RETURN_IF_ERROR(server::CheckCheckpointName(to));
  request.set_checkpoint(to);
  return request;
}

absl::StatusOr<std::vector<RollbackPart>> RollBackCluster(const std::string& address,
                                                          const v1::RollbackRequest& request, int timeout_ms) {
  return AskServers<RollbackPart>(
      address, timeout_ms, [&](const std::string& server) { return RequestRollback(server, request, timeout_ms); });
}

int RunRollback(const RollbackOptions& options) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage(kRollback, address.message());
  }
  const absl::StatusOr<v1::RollbackRequest> request = MakeRollbackRequest(options.table, options.to);
  if (!request.ok()) return FailUsage(kRollback, absl::StrCat("--to: ", request.status().message()));
  const auto parts = RollBackCluster(options.address, *request, options.timeout_ms);
  if (!parts.ok()) return Fail(kRollback, parts.status());
  const Painter paint(WantsColor(STDOUT_FILENO));
  std::fputs((options.json ? ToJson(options, *parts) : ToText(options, *parts, paint)).c_str(), stdout);
  return Judge(options, *parts);
}

const Verb kRollbackVerb = {
    "rollback", "Brings one table back on all servers, while the cluster runs",
    "  psctl rollback user_rows --to before-move              that table goes back, while the cluster runs\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<RollbackOptions>();
      command->add_option("TABLE", options->table, "Its name")->required();
      command
          ->add_option(
              "--to", options->to,
              "A checkpoint's name, or (digits only) a version, which each shard goes back to that has passed it. "
              "For a version each ps rebuilds all that it held then beside what it holds, from its checkpoints "
              "and its log: that takes as much memory again while it runs")
          ->required();
      AddAddress(command, &options->address);
      AddJson(command, &options->json);
      AddTimeout(command, &options->timeout_ms, "How long to wait for it");
      return [options] { return RunRollback(*options); };
    }};

}  // namespace lodestone::psctl
