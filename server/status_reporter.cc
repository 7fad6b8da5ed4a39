#include "server/status_reporter.h"

#include <optional>
#include <utility>

#include "common/telemetry/hot_shards.h"
#include "common/telemetry/wait_graph.h"
#include "server/auth/security.h"
#include "server/coordinator/coordinator_host.h"
#include "server/coordinator_client.h"
#include "server/dashboard/dashboard.h"
#include "server/durability/storage.h"
#include "server/monitoring/event_log.h"
#include "server/monitoring/ps_metrics.h"
#include "server/replication/replication.h"
#include "server/rpc/broadcaster.h"
#include "server/store/store.h"

namespace lodestone::server {
namespace {

// A heartbeat must fit into one message, whose length is limited: the loads of shards take no more than a quarter of
// it.
constexpr uint32_t kLoadsPart = 4;

// Of the cluster it is enough to know which shards are hot; each ps has the loads of its own.
void LeaveOutLoads(v1::ClusterStatus* cluster) {
  for (v1::MemberStatus& member : *cluster->mutable_servers()) {
    if (member.has_server()) member.mutable_server()->clear_shards();
  }
}

}  // namespace

HttpServer::Paths StatusReporter::HttpPaths(std::function<absl::Status()> readiness) const {
  HttpServer::Paths paths =
      PsMonitoringPaths([this](v1::StatusResponse* status) { FillStatus(status); }, std::move(readiness));
  paths.merge(PageHandlers({[this] {
                              v1::StatusResponse status;
                              FillStatus(&status);
                              return status;
                            },
                            [this](const v1::EventsRequest& request) { return Events(request.after_id()); },
                            [this] { return History(); }}));
  return paths;
}

void StatusReporter::FillStatus(v1::StatusResponse* status) const {
  from_.store->FillStatus(status);
  if (from_.storage != nullptr) from_.storage->FillStatus(status);
  from_.broadcaster->FillStatus(status);
  if (from_.replication != nullptr) from_.replication->FillStatus(status);
  from_.coordinator->FillStatus(status);
  from_.security->FillStatus(status);
  FillProcess(from_.identity(), status->mutable_server());
  from_.add_waits(status);
  const std::shared_ptr<CoordinatorClient> member = from_.member();
  if (member != nullptr) member->FillStatus(status);
  ExplainWaits(status);
  FindHotAndSlowShards(status);
  if (status->has_cluster()) LeaveOutLoads(status->mutable_cluster());
}

v1::ServerProgress StatusReporter::Progress() const {
  v1::StatusResponse status;  // But for what the disk may keep waiting, as a heartbeat must not.
  from_.store->FillStatus(&status);
  if (from_.replication != nullptr) from_.replication->FillStatus(&status);
  FillProcess(from_.identity(), status.mutable_server());
  from_.add_waits(&status);
  return ProgressOf(status, from_.message_max_bytes / kLoadsPart);
}

v1::EventsResponse StatusReporter::Events(uint64_t after_id) const {
  std::optional<v1::EventsResponse> of_cluster = from_.coordinator->Events(after_id);
  return of_cluster.has_value() ? *std::move(of_cluster) : from_.events->Tell(after_id);
}

v1::HistoryResponse StatusReporter::History() const {
  return from_.coordinator->TellHistory().value_or(v1::HistoryResponse());
}

}  // namespace lodestone::server
