#include "tools/psctl/client/cluster_report.h"

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/time_source.h"
#include "server/rpc/process_identity.h"
#include "tools/psctl/client/admin_client.h"
#include "tools/psctl/text/exit_code.h"
#include "tools/psctl/text/message_json.h"

namespace lodestone::psctl {
namespace {

// The time that is left of what a command has.
class Deadline {
 public:
  explicit Deadline(int timeout_ms) : ends_ms_(time_.NowMs() + timeout_ms) {}
  int left_ms() const { return static_cast<int>(std::max<int64_t>(1, ends_ms_ - time_.NowMs())); }

 private:
  const SteadyTime time_;
  const int64_t ends_ms_;
};

// What the ps that serves the coordinator says, which may be `first`.
absl::StatusOr<v1::StatusResponse> AskCoordinator(const std::string& address, const v1::StatusResponse& first,
                                                  int timeout_ms) {
  if (first.has_cluster()) return first;
  if (first.coordinator().empty()) {
    return absl::UnavailableError(absl::StrCat("the ps at ", address, " knows no coordinator yet"));
  }
  LODESTONE_ASSIGN_OR_RETURN(v1::StatusResponse status, FetchStatus(first.coordinator(), timeout_ms));
  if (status.has_cluster()) return status;
  return absl::UnavailableError(absl::StrCat("the ps at ", first.coordinator(), " serves the coordinator no more"));
}

// Of those that were asked already: the one with this life.
const v1::StatusResponse* Find(const std::vector<const v1::StatusResponse*>& known, const v1::MemberStatus& member) {
  for (const v1::StatusResponse* const status : known) {
    if (status->server().index() == member.index() && status->server().address() == member.peer()) return status;
  }
  return nullptr;
}

// Asks the members that live and are not known yet.
std::vector<ServerReport> AskServers(const v1::ClusterStatus& cluster,
                                     const std::vector<const v1::StatusResponse*>& known, const Deadline& deadline) {
  std::vector<ServerReport> servers;
  for (const v1::MemberStatus& member : cluster.servers()) {
    ServerReport& server = servers.emplace_back();
    server.index = member.index();
    server.address = member.peer();
    if (const v1::StatusResponse* const status = Find(known, member); status != nullptr) {
      server.status = *status;
    } else if (member.left() || !member.alive()) {
      server.status = absl::FailedPreconditionError(member.left() ? "it has left" : "it is dead");
    }
  }
  std::vector<std::thread> threads;
  for (ServerReport& server : servers) {
    if (!absl::IsUnknown(server.status.status())) continue;
    threads.emplace_back([&server, &deadline] { server.status = FetchStatus(server.address, deadline.left_ms()); });
  }
  for (std::thread& thread : threads) thread.join();
  std::sort(servers.begin(), servers.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  return servers;
}

// The servers' own answers are newer than the coordinator's copies.
void TakeNewest(const std::vector<ServerReport>& servers, v1::ClusterStatus* cluster) {
  for (v1::MemberStatus& member : *cluster->mutable_servers()) {
    for (const ServerReport& server : servers) {
      if (server.index == member.index() && server.status.ok())
        *member.mutable_server() = server::ProgressOf(*server.status);
    }
  }
}

}  // namespace

absl::StatusOr<ClusterReport> AskCluster(const std::string& address, int timeout_ms) {
  const Deadline deadline(timeout_ms);
  LODESTONE_ASSIGN_OR_RETURN(const v1::StatusResponse first, FetchStatus(address, timeout_ms));
  ClusterReport report;
  const absl::StatusOr<v1::StatusResponse> coordinator = AskCoordinator(address, first, deadline.left_ms());
  if (!coordinator.ok()) {
    report.remark = absl::StrCat("only the ps at ", address, " could be asked: ", coordinator.status().message());
    ServerReport& server = report.servers.emplace_back();
    server.index = first.server().index();
    server.address = first.server().address();
    server.status = first;
    return report;
  }
  report.coordinator = first.has_cluster() ? address : first.coordinator();
  report.cluster = coordinator->cluster();
  report.servers = AskServers(report.cluster, {&first, &*coordinator}, deadline);
  TakeNewest(report.servers, &report.cluster);
  return report;
}

int ComplainAboutMissing(absl::string_view verb, const ClusterReport& report) {
  int exit_code = kExitDone;
  if (!report.remark.empty()) {
    Complain(verb, report.remark);
    exit_code = kExitFailed;
  }
  for (const ServerReport& server : report.servers) {
    if (!server.failed()) continue;
    Complain(verb, absl::StrCat("ps ", server.index, ": ", server.status.status().message()));
    exit_code = kExitFailed;
  }
  return exit_code;
}

nlohmann::ordered_json ToJson(const ClusterReport& report) {
  nlohmann::ordered_json servers = nlohmann::ordered_json::array();
  for (const ServerReport& server : report.servers) {
    nlohmann::ordered_json one = {{"index", server.index}, {"address", server.address}};
    if (server.status.ok()) {
      one["status"] = JsonOf(*server.status);
      one["status"].erase("cluster");  // It stands above.
    } else {
      one["error"] = std::string(server.status.status().message());
    }
    servers.push_back(std::move(one));
  }
  return {{"coordinator", report.coordinator}, {"cluster", JsonOf(report.cluster)}, {"servers", std::move(servers)}};
}

}  // namespace lodestone::psctl
