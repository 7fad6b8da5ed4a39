#include "tools/psctl/verbs/why.h"

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "CLI/App.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/telemetry/wait_graph.h"
#include "nlohmann/json.hpp"
#include "server/rpc/process_identity.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/text/style.h"
#include "tools/psctl/text/table.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

using Json = nlohmann::ordered_json;

// The cluster, or where its coordinator cannot be asked, what one ps knows of itself.
v1::ClusterStatus ClusterOf(const ClusterReport& report) {
  if (!report.coordinator.empty()) return report.cluster;
  v1::ClusterStatus cluster;
  for (const ServerReport& server : report.servers) {
    v1::MemberStatus* const member = cluster.add_servers();
    member->set_index(server.index);
    member->set_peer(server.address);
    member->set_alive(true);
    if (server.status.ok()) *member->mutable_server() = server::ProgressOf(*server.status);
  }
  return cluster;
}

std::optional<uint32_t> CoordinatorOf(const ClusterReport& report) {
  for (const ServerReport& server : report.servers) {
    if (server.status.ok() && server.status->has_cluster()) return server.index;
  }
  return std::nullopt;
}

// What the time of each process that takes part goes by, a line each; empty: none does.
Rows StageRows(const char* name, const google::protobuf::RepeatedPtrField<v1::MemberStatus>& members) {
  Rows rows;
  for (const v1::MemberStatus& member : members) {
    double all = 0;
    for (const v1::StageTime& stage : member.stages()) all += stage.seconds();
    if (all == 0) continue;
    if (rows.empty()) {
      rows.emplace_back().push_back({name});
      for (const v1::StageTime& stage : member.stages()) rows[0].push_back({stage.stage()});
    }
    if (rows[0].size() != static_cast<size_t>(member.stages_size()) + 1) continue;  // Of another version.
    std::vector<Cell>& row = rows.emplace_back();
    row.push_back({absl::StrCat(member.index())});
    for (const v1::StageTime& stage : member.stages()) {
      row.push_back({absl::StrFormat("%.0f %%", 100 * stage.seconds() / all)});
    }
  }
  return rows;
}

std::string WhyText(const ClusterReport& report, const Painter& paint) {
  std::string text;
  const std::vector<v1::WaitChain> chains = WhyOf(report);
  for (const v1::WaitChain& chain : chains) {
    absl::StrAppend(&text, chain.text(), "\n");
    if (!chain.likewise().empty()) absl::StrAppend(&text, "  likewise ", absl::StrJoin(chain.likewise(), ", "), "\n");
  }
  if (chains.empty()) text = "nothing waits\n";
  for (const v1::SlowMember& slow : SlowMembersOf(report.cluster)) absl::StrAppend(&text, "slow: ", slow.text(), "\n");
  for (const v1::SlowShard& slow : report.cluster.slow_shards()) absl::StrAppend(&text, "slow: ", slow.text(), "\n");
  for (const v1::HotShard& hot : report.cluster.hot_shards()) absl::StrAppend(&text, "hot: ", hot.text(), "\n");
  for (const Rows& rows :
       {StageRows("steps of worker", report.cluster.workers()), StageRows("pushes on ps", report.cluster.servers())}) {
    if (!rows.empty()) absl::StrAppend(&text, AlignedTable(rows, paint));
  }
  return text;
}

Json StagesJson(const google::protobuf::RepeatedPtrField<v1::MemberStatus>& members) {
  Json all = Json::array();
  for (const v1::MemberStatus& member : members) {
    Json stages = Json::object();
    for (const v1::StageTime& stage : member.stages()) stages[stage.stage()] = stage.seconds();
    all.push_back({{"index", member.index()}, {"stages", std::move(stages)}});
  }
  return all;
}

Json WhyJson(const ClusterReport& report) {
  Json why = Json::array(), slow = Json::array(), slow_shards = Json::array(), hot = Json::array();
  for (const v1::WaitChain& chain : WhyOf(report)) why.push_back(JsonOf(chain));
  for (const v1::SlowMember& member : SlowMembersOf(report.cluster)) slow.push_back(JsonOf(member));
  for (const v1::SlowShard& shard : report.cluster.slow_shards()) slow_shards.push_back(JsonOf(shard));
  for (const v1::HotShard& shard : report.cluster.hot_shards()) hot.push_back(JsonOf(shard));
  return {{"why", std::move(why)},
          {"slow", std::move(slow)},
          {"slow_shards", std::move(slow_shards)},
          {"hot_shards", std::move(hot)},
          {"workers", StagesJson(report.cluster.workers())},
          {"servers", StagesJson(report.cluster.servers())}};
}

}  // namespace

std::vector<v1::WaitChain> WhyOf(const ClusterReport& report) {
  const v1::ClusterStatus cluster = ClusterOf(report);
  WaitGraph graph(&cluster, CoordinatorOf(report));
  for (const ServerReport& server : report.servers) {
    if (server.failed() || server.status.ok()) graph.NoteAsked(server.index, server.status.ok());
    if (!server.status.ok()) continue;
    for (const v1::WaitStatus& wait : server.status->waits()) graph.Add(wait);
  }
  return graph.Chains();
}

int RunWhy(const ReportOptions& options) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage("why", address.message());
  }
  const absl::StatusOr<ClusterReport> report = AskCluster(options.address, options.timeout_ms);
  if (!report.ok()) return Fail("why", report.status());
  const std::string output =
      options.json ? IndentedJson(WhyJson(*report)) : WhyText(*report, Painter(WantsColor(STDOUT_FILENO)));
  std::fputs(output.c_str(), stdout);
  std::fflush(stdout);
  return ComplainAboutMissing("why", *report);
}

const Verb kWhyVerb = {
    "why",
    "Says why the cluster waits: follows each wait across processes to its root, and names who is slow, and what the "
    "time goes by",
    "  psctl why --address ps0:7000                           why does it stand still? from the one who waits to the "
    "disk, process or worker that it is about\n",
    [](CLI::App* command) -> Verb::Run {
      const auto options = std::make_shared<ReportOptions>();
      AddAddress(command, &options->address);
      AddJson(command, &options->json);
      AddTimeout(command, &options->timeout_ms);
      return [options] { return RunWhy(*options); };
    }};

}  // namespace lodestone::psctl
