#include "tools/psctl/verbs/listing.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <utility>

#include "CLI/App.hpp"
#include "absl/strings/str_cat.h"
#include "common/telemetry/figures.h"
#include "nlohmann/json.hpp"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"
#include "tools/psctl/verbs/flags.h"

namespace lodestone::psctl {
namespace {

using Json = nlohmann::ordered_json;

// Asks the cluster, prints what `text` or `json` makes of it, and says what is missing.
template <typename Text, typename ToJson>
int RunListing(absl::string_view verb, const ReportOptions& options, const Text& text, const ToJson& json) {
  if (const absl::Status address = CheckAddressFlag(options.address); !address.ok()) {
    return FailUsage(verb, address.message());
  }
  const absl::StatusOr<ClusterReport> report = AskCluster(options.address, options.timeout_ms);
  if (!report.ok()) return Fail(verb, report.status());
  const std::string output =
      options.json ? IndentedJson(json(*report)) : text(*report, Painter(WantsColor(STDOUT_FILENO)));
  std::fputs(output.c_str(), stdout);
  std::fflush(stdout);
  return ComplainAboutMissing(verb, *report);
}

// The servers that answered, for an array in JSON.
Json AnsweredBy(const ClusterReport& report) {
  Json servers = Json::array();
  for (const ServerReport& server : report.servers) {
    if (server.status.ok()) servers.push_back(server.index);
  }
  return servers;
}

std::string TablesText(const ClusterReport& report, const Painter& paint) {
  const std::vector<v1::TableStatus> tables = TablesOf(report);
  if (tables.empty()) return "no tables yet\n";
  std::string text = AlignedTable(TableRows(tables), paint);
  if (report.cluster.replicas() > 1) absl::StrAppend(&text, "counted with the copies of followers\n");
  return text;
}

Json TablesJson(const ClusterReport& report) {
  Json tables = Json::array();
  for (const v1::TableStatus& table : TablesOf(report)) tables.push_back(JsonOf(table));
  return {{"servers", AnsweredBy(report)}, {"replicas", report.cluster.replicas()}, {"tables", std::move(tables)}};
}

std::string WorkersText(const ClusterReport& report, const Painter& paint) {
  const PushesByWorker pushes = PushesOf(report);
  if (report.cluster.workers().empty()) return "no workers yet\n";
  return AlignedTable(WorkerRows(report.cluster, &pushes), paint);
}

Json WorkersJson(const ClusterReport& report) {
  const PushesByWorker pushes = PushesOf(report);
  Json workers = Json::array();
  for (const v1::MemberStatus& worker : report.cluster.workers()) {
    Json one = JsonOf(worker);
    for (const char* of_servers : {"server", "shards_owned", "shards_following"}) one.erase(of_servers);
    const auto found = pushes.find(worker.incarnation());
    one["pushes"] = found == pushes.end() ? 0 : found->second.applied;
    one["pushes_refused"] = found == pushes.end() ? 0 : found->second.refused;
    workers.push_back(std::move(one));
  }
  return {{"servers", AnsweredBy(report)}, {"workers", std::move(workers)}};
}

std::string WaitsText(const ClusterReport& report, const Painter& paint) {
  const std::vector<ClusterWait> waits = WaitsOf(report);
  return waits.empty() ? "nothing waits\n" : AlignedTable(WaitRows(waits), paint);
}

Json WaitsJson(const ClusterReport& report) {
  Json waits = Json::array();
  for (const ClusterWait& wait : WaitsOf(report)) {
    Json one = {{"where", wait.where}, {"who", wait.wait.who()}, {"what", wait.wait.what()}};
    one["seconds"] = wait.wait.seconds() > 0 ? Json(wait.wait.seconds()) : Json();
    waits.push_back(std::move(one));
  }
  return {{"servers", AnsweredBy(report)}, {"waits", std::move(waits)}};
}

}  // namespace

std::vector<v1::TableStatus> TablesOf(const ClusterReport& report) {
  std::map<std::string, v1::TableStatus> by_name;
  for (const ServerReport& server : report.servers) {
    if (!server.status.ok()) continue;
    for (const v1::TableStatus& here : server.status->tables()) {
      v1::TableStatus& table = by_name[here.name()];
      v1::TableStatus merged = here;
      MergeFigures(table, &merged);
      table = std::move(merged);
    }
  }
  std::vector<v1::TableStatus> tables;
  for (auto& [name, table] : by_name) tables.push_back(std::move(table));
  return tables;
}

PushesByWorker PushesOf(const ClusterReport& report) {
  PushesByWorker pushes;
  for (const ServerReport& server : report.servers) {
    if (!server.status.ok()) continue;
    for (const v1::SessionStatus& session : server.status->sessions()) {
      pushes[session.worker_incarnation()].applied += session.pushes();
      pushes[session.worker_incarnation()].refused += session.refused();
    }
  }
  return pushes;
}

std::vector<ClusterWait> WaitsOf(const ClusterReport& report) {
  std::vector<ClusterWait> waits;
  for (const ServerReport& server : report.servers) {
    if (!server.status.ok()) continue;
    for (const v1::WaitStatus& wait : server.status->waits()) {
      waits.push_back({absl::StrCat("ps ", server.index), wait});
    }
  }
  for (const v1::MemberStatus& worker : report.cluster.workers()) {
    if (worker.progress().waiting_for().empty() || !worker.alive()) continue;
    ClusterWait& wait = waits.emplace_back();
    wait.where = absl::StrCat("worker ", worker.index());
    wait.wait.set_who(wait.where);
    wait.wait.set_what(worker.progress().waiting_for());
  }
  std::stable_sort(waits.begin(), waits.end(),
                   [](const auto& a, const auto& b) { return a.wait.seconds() > b.wait.seconds(); });
  return waits;
}

Rows TableRows(const std::vector<v1::TableStatus>& tables) {
  v1::StatusResponse status;
  status.mutable_tables()->Add(tables.begin(), tables.end());
  return TableRows(status);
}

Rows WaitRows(const std::vector<ClusterWait>& waits) {
  Rows rows = {{"where", "who", "waits for", "since"}};
  for (const ClusterWait& wait : waits) {
    rows.push_back({wait.where, wait.wait.who(), Cell(wait.wait.what(), Style::kWarning),
                    wait.wait.seconds() > 0 ? SecondsText(wait.wait.seconds()) : std::string("over 1 s")});
  }
  return rows;
}

int RunTables(const ReportOptions& options) { return RunListing("tables", options, TablesText, TablesJson); }
int RunWorkers(const ReportOptions& options) { return RunListing("workers", options, WorkersText, WorkersJson); }
int RunWaits(const ReportOptions& options) { return RunListing("waits", options, WaitsText, WaitsJson); }

namespace {

// The verbs differ in what they run only.
template <int (*kRun)(const ReportOptions&)>
Verb::Run DeclareListing(CLI::App* command) {
  const auto options = std::make_shared<ReportOptions>();
  AddAddress(command, &options->address);
  AddJson(command, &options->json);
  AddTimeout(command, &options->timeout_ms);
  return [options] { return kRun(*options); };
}

}  // namespace

const Verb kTablesVerb = {
    "tables", "Shows the tables, summed up over all servers",
    "  psctl tables --address ps0:7000                        what is on all servers, table by table\n",
    DeclareListing<RunTables>};

const Verb kWorkersVerb = {"workers", "Shows the workers: progress, and what all servers say of their pushes",
                           "  psctl workers --json                                   all workers, for programs\n",
                           DeclareListing<RunWorkers>};

const Verb kWaitsVerb = {"waits", "Shows what every wait of the cluster waits for, and since when",
                         "  psctl waits                                            what every wait of the cluster "
                         "waits for, and since when\n",
                         DeclareListing<RunWaits>};

}  // namespace lodestone::psctl
