#include "server/monitoring/ps_metrics.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/http/monitoring.h"
#include "common/telemetry/figures.h"
#include "common/telemetry/readiness.h"

namespace lodestone::server {
namespace {

constexpr auto kCounter = MetricFamilies::Type::kCounter;
constexpr auto kGauge = MetricFamilies::Type::kGauge;
constexpr char kOtherTables[] = "(others)";  // No name that a table can have.

// One metric of what a part of the status says.
template <typename Part>
struct Row {
  const char* name;
  const char* help;
  MetricFamilies::Type type;
  double (*value)(const Part&);
};

template <typename Part>
void AddRows(std::span<const Row<Part>> rows, const Part& part, const MetricLabels& labels, MetricFamilies* to) {
  for (const Row<Part>& row : rows) to->Add(row.name, row.help, row.type, row.value(part), labels);
}

using Server = v1::ServerStatus;
constexpr Row<Server> kServerRows[] = {
    {"lodestone_ps_shards_owned", "Shards that this ps owns.", kGauge,
     [](const Server& s) -> double { return s.shards_owned(); }},
    {"lodestone_ps_shards", "Shards of the cluster.", kGauge,
     [](const Server& s) -> double { return s.shards_total(); }},
    {"lodestone_ps_pushes_total", "Pushes applied.", kCounter, [](const Server& s) -> double { return s.pushes(); }},
    {"lodestone_ps_pushes_duplicate_total", "Pushes recognised as duplicates, and not applied again.", kCounter,
     [](const Server& s) -> double { return s.pushes_duplicate(); }},
    {"lodestone_ps_pushes_refused_total",
     "Pushes refused: not finite, malformed, over a limit, or because the ps cannot take any now.", kCounter,
     [](const Server& s) -> double { return s.pushes_refused(); }},
    {"lodestone_ps_pulls_total", "Pulls answered.", kCounter, [](const Server& s) -> double { return s.pulls(); }},
    {"lodestone_ps_table_memory_bytes", "Bytes that tables take.", kGauge,
     [](const Server& s) -> double { return s.table_bytes(); }},
    {"lodestone_ps_table_memory_limit_bytes", "Bytes that tables may take.", kGauge,
     [](const Server& s) -> double { return s.table_bytes_max(); }},
    {"lodestone_ps_broadcast_pinned_bytes",
     "Bytes of values that broadcasts under way keep in memory; what pushes change meanwhile is there twice.", kGauge,
     [](const Server& s) -> double { return s.broadcast_pinned_bytes(); }},
    {"lodestone_ps_call_memory_bytes",
     "Bytes of requests that are being handled and of answers that are not written yet.", kGauge,
     [](const Server& s) -> double { return s.call_bytes(); }},
    {"lodestone_ps_call_memory_limit_bytes", "Bytes that those may take; beyond it streams are read in turn.", kGauge,
     [](const Server& s) -> double { return s.call_bytes_max(); }},
    {"lodestone_ps_security_warning", "Whether something of its security is worth a look: psctl status says what.",
     kGauge, [](const Server& s) -> double { return !s.security_warning().empty(); }},
};

using Storage = v1::StorageStatus;
constexpr Row<Storage> kStorageRows[] = {
    {"lodestone_ps_log_size_bytes", "Bytes of the log's segments.", kGauge,
     [](const Storage& s) -> double { return s.log_bytes(); }},
    {"lodestone_ps_log_records_total", "Records appended to the log.", kCounter,
     [](const Storage& s) -> double { return s.log_records(); }},
    {"lodestone_ps_log_commits_total", "Groups of records that were written together.", kCounter,
     [](const Storage& s) -> double { return s.log_commits(); }},
    {"lodestone_ps_log_failing", "Whether the log cannot be written now, which stops all pushes.", kGauge,
     [](const Storage& s) -> double { return !s.log_error().empty(); }},
    {"lodestone_ps_checkpoint_failing", "Whether the last attempt to write a checkpoint failed.", kGauge,
     [](const Storage& s) -> double { return !s.checkpoint_error().empty(); }},
    {"lodestone_ps_checkpoint_scrubs_total", "How often the files of its checkpoints were read again.", kCounter,
     [](const Storage& s) -> double { return s.scrub_passes(); }},
    {"lodestone_ps_checkpoint_damage", "Damaged checkpoints that nothing has replaced: psctl status names the files.",
     kGauge, [](const Storage& s) -> double { return s.checkpoint_damage_size(); }},
    {"lodestone_ps_recovery_duration_seconds", "How long the start took to bring the shards back.", kGauge,
     [](const Storage& s) -> double { return s.recovery_seconds(); }},
    {"lodestone_ps_recovery_records", "Log records that the start applied.", kGauge,
     [](const Storage& s) -> double { return s.replayed_records(); }},
};

using Replication = v1::ReplicationStatus;
template <typename Number>
double SumOfFollowers(const Replication& r, Number (v1::FollowerStatus::*number)() const) {
  double sum = 0;
  for (const v1::FollowerStatus& follower : r.followers()) sum += static_cast<double>((follower.*number)());
  return sum;
}
constexpr Row<Replication> kReplicationRows[] = {
    {"lodestone_ps_replication_shards_in_sync",
     "Shards that it owns and whose followers have all that is acknowledged.", kGauge,
     [](const Replication& r) -> double { return r.shards_in_sync(); }},
    {"lodestone_ps_replication_shards_alone", "Shards that it owns and that have no follower in sync.", kGauge,
     [](const Replication& r) -> double { return r.shards_alone(); }},
    {"lodestone_ps_replication_shards_following", "Shards that it follows.", kGauge,
     [](const Replication& r) -> double { return r.shards_following(); }},
    {"lodestone_ps_replication_shards_followed", "Of those, the ones whose state it has.", kGauge,
     [](const Replication& r) -> double { return r.shards_followed(); }},
    {"lodestone_ps_replication_followers", "Servers that follow this one.", kGauge,
     [](const Replication& r) -> double { return r.followers_size(); }},
    {"lodestone_ps_replication_lag_records", "Updates that followers have not confirmed yet.", kGauge,
     [](const Replication& r) { return SumOfFollowers(r, &v1::FollowerStatus::lag_records); }},
    {"lodestone_ps_replication_lag_bytes", "Bytes of the updates that followers have not confirmed yet.", kGauge,
     [](const Replication& r) { return SumOfFollowers(r, &v1::FollowerStatus::lag_bytes); }},
    {"lodestone_ps_replication_lease_seconds", "Until the lease of this ps ends; below 0: it has ended.", kGauge,
     [](const Replication& r) -> double { return r.lease_seconds(); }},
};

using Cluster = v1::ClusterStatus;
bool Trains(const v1::MemberStatus& worker) { return worker.alive() && !worker.left(); }
// The largest of what `value` says of the workers that live; 0 if none does.
double MaxOfWorkers(const Cluster& cluster, double (*value)(const v1::MemberStatus&)) {
  double max = 0;
  for (const v1::MemberStatus& worker : cluster.workers()) {
    if (Trains(worker)) max = std::max(max, value(worker));
  }
  return max;
}
double SumOfWorkers(const Cluster& cluster, double (*value)(const v1::MemberStatus&)) {
  double sum = 0;
  for (const v1::MemberStatus& worker : cluster.workers()) sum += value(worker);
  return sum;
}
constexpr Row<Cluster> kClusterRows[] = {
    {"lodestone_cluster_servers_expected", "Servers that the cluster is configured with, without places that are kept.",
     kGauge, [](const Cluster& c) -> double { return c.servers_expected(); }},
    {"lodestone_cluster_replicas", "Copies that each shard is to have.", kGauge,
     [](const Cluster& c) -> double { return c.replicas(); }},
    {"lodestone_cluster_shards_in_sync", "Shards whose followers are in sync.", kGauge,
     [](const Cluster& c) -> double { return c.shards_in_sync(); }},
    {"lodestone_cluster_route_epoch",
     "The shard map's epoch: it grows when a shard gets another owner, or a server another address.", kGauge,
     [](const Cluster& c) -> double { return c.route_epoch(); }},
    {"lodestone_cluster_samples", "Samples that all workers, the dead too, have trained on.", kGauge,
     [](const Cluster& c) {
       return SumOfWorkers(c, [](const v1::MemberStatus& w) -> double { return w.progress().samples(); });
     }},
    {"lodestone_cluster_worker_silence_seconds", "Since the last heartbeat of the worker that is silent longest.",
     kGauge,
     [](const Cluster& c) {
       return MaxOfWorkers(c, [](const v1::MemberStatus& w) -> double { return w.last_contact_seconds(); });
     }},
    {"lodestone_cluster_workers_waiting", "Workers that have waited for something for more than a second.", kGauge,
     [](const Cluster& c) {
       return SumOfWorkers(
           c, [](const v1::MemberStatus& w) -> double { return Trains(w) && !w.progress().waiting_for().empty(); });
     }},
};

template <typename Members>
void AddMembers(const char* name, const char* help, const Members& members, MetricFamilies* to) {
  std::map<std::string, double> counts = {{"alive", 0}, {"left", 0}, {"dead", 0}};
  for (const v1::MemberStatus& member : members) ++counts[member.left() ? "left" : member.alive() ? "alive" : "dead"];
  for (const auto& [state, count] : counts) to->Add(name, help, kGauge, count, {{"state", state}});
}

void AddBytes(const Server& server, MetricFamilies* to) {
  for (const auto& [direction, bytes] : {std::pair("push", server.push_bytes()), std::pair("pull", server.pull_bytes()),
                                         std::pair("broadcast", server.broadcast_bytes())}) {
    to->Add("lodestone_ps_payload_bytes_total", "Payload bytes of pushes taken, pulls answered and broadcasts sent.",
            kCounter, static_cast<double>(bytes), {{"direction", direction}, {"codec", "f32"}});
  }
}

void AddTable(const v1::TableStatus& table, const std::string& name, MetricFamilies* to) {
  for (const Figure& figure : FiguresOf(*table.GetDescriptor())) {
    const std::string& metric = figure.options->metric();
    if (metric.empty()) continue;
    to->Add(metric.c_str(), figure.options->help().c_str(), absl::EndsWith(metric, "_total") ? kCounter : kGauge,
            static_cast<double>(figure.Of(table)), {{"table", name}});
  }
}

void AddTables(const v1::StatusResponse& status, MetricFamilies* to) {
  to->Add("lodestone_ps_tables", "Tables on this ps.", kGauge, status.tables_size());
  v1::TableStatus others;
  for (int i = 0; i < status.tables_size(); ++i) {
    if (i < kTablesWithSeries) {
      AddTable(status.tables(i), status.tables(i).name(), to);
    } else {
      MergeFigures(status.tables(i), &others);
    }
  }
  if (status.tables_size() > kTablesWithSeries) AddTable(others, kOtherTables, to);
}

void AddWork(const v1::StatusResponse& status, MetricFamilies* to) {
  double waiting = 0, wait_max = 0;
  for (const v1::ExecutorStatus& executor : status.executors()) waiting += executor.queue_length();
  for (const v1::WaitStatus& wait : status.waits()) wait_max = std::max(wait_max, wait.seconds());
  to->Add("lodestone_ps_executor_queue_length", "Messages that wait for an executor.", kGauge, waiting);
  to->Add("lodestone_ps_executors", "Threads that apply updates.", kGauge, status.executors_size());
  to->Add("lodestone_ps_sessions", "Workers that this ps knows.", kGauge, status.sessions_size());
  to->Add("lodestone_ps_subscribers", "Subscribers.", kGauge, status.subscribers_size());
  to->Add("lodestone_ps_waits", "Waits under way: psctl waits says for what.", kGauge, status.waits_size());
  to->Add("lodestone_ps_wait_longest_seconds", "How long the longest of them has lasted.", kGauge, wait_max);
}

// By role, of which there are few; names can be many.
void AddIdentities(const v1::StatusResponse& status, MetricFamilies* to) {
  std::map<std::string, v1::IdentityStatus> roles;
  for (const v1::IdentityStatus& identity : status.identities()) {
    v1::IdentityStatus& role = roles[identity.role()];
    role.set_calls(role.calls() + identity.calls());
    role.set_denied(role.denied() + identity.denied());
    role.set_throttled(role.throttled() + identity.throttled());
  }
  for (const auto& [name, role] : roles) {
    const MetricLabels labels = {{"role", name}};
    to->Add("lodestone_ps_calls_allowed_total", "Calls that were let through.", kCounter, role.calls(), labels);
    to->Add("lodestone_ps_calls_denied_total", "Calls that were denied.", kCounter, role.denied(), labels);
    to->Add("lodestone_ps_pushes_throttled_total", "Pushes that had to wait for a quota, or were refused for it.",
            kCounter, role.throttled(), labels);
  }
}

void AddCheckpoint(const Storage& storage, double now_seconds, MetricFamilies* to) {
  if (storage.checkpoint().empty()) return;
  to->Add("lodestone_ps_checkpoint_timestamp_seconds",
          "When the newest checkpoint since the start was complete, in seconds since 1970.", kGauge,
          now_seconds - storage.checkpoint_age_seconds());
  to->Add("lodestone_ps_checkpoint_size_bytes", "Bytes written for it.", kGauge,
          static_cast<double>(storage.checkpoint_bytes()));
}

}  // namespace

void AddPsMetrics(const v1::StatusResponse& status, bool ready, double now_seconds, MetricFamilies* to) {
  to->Add("lodestone_ps_info", "Always 1; its labels say which ps of the cluster this is.", kGauge, 1,
          {{"index", absl::StrCat(status.server().index())}});
  to->Add("lodestone_ps_ready", "Whether it is ready, as /readyz says.", kGauge, ready);
  AddRows<Server>(kServerRows, status.server(), {}, to);
  AddBytes(status.server(), to);
  AddWork(status, to);
  AddTables(status, to);
  AddIdentities(status, to);
  if (status.has_storage()) {
    AddRows<Storage>(kStorageRows, status.storage(), {}, to);
    AddCheckpoint(status.storage(), now_seconds, to);
  }
  if (status.has_replication()) AddRows<Replication>(kReplicationRows, status.replication(), {}, to);
  if (status.has_cluster()) {
    AddRows<Cluster>(kClusterRows, status.cluster(), {}, to);
    AddMembers("lodestone_cluster_servers", "Servers that have joined.", status.cluster().servers(), to);
    AddMembers("lodestone_cluster_workers", "Workers that have joined.", status.cluster().workers(), to);
  }
}

HttpServer::Paths PsMonitoringPaths(std::function<void(v1::StatusResponse*)> fill_status,
                                    std::function<absl::Status()> readiness) {
  const auto add_metrics = [fill_status, readiness](MetricFamilies* families) {
    v1::StatusResponse status;
    fill_status(&status);
    AddPsMetrics(status, readiness().ok(), absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()), families);
  };
  const auto explained = [fill_status, readiness] {
    absl::Status ready = readiness();
    if (ready.ok() || !ready.message().empty()) return ready;
    v1::StatusResponse status;
    fill_status(&status);
    const std::string why = WhyNotReady(status);
    return absl::UnavailableError(why.empty() ? "this ps does not have its shards yet" : why);
  };
  return MonitoringPaths(add_metrics, explained);
}

}  // namespace lodestone::server
