#include "tests/chaos/ps_cluster.h"

#include <poll.h>
#include <signal.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/check.h"
#include "common/config.h"
#include "common/status.h"
#include "tools/psctl/admin_client.h"

namespace lodestone::chaos {
namespace {

// Small shards and segments, so that all kinds of borders are crossed often; a client waits long enough for answers not
// to be asked again in vain by a busy machine, and never gives up.
constexpr char kConfig[] =
    "cluster: {name: chaos, workers: 64, shards: 16, seed: 5}\n"
    "coordinator: {lease_ms: 10000, join_timeout_ms: 120000}\n"
    "server: {executors: 2, log_segment_bytes: 262144}\n"
    "checkpoint: {every_ms: 3000, keep: 2, full_every: 3}\n"
    "worker: {pushes_in_flight_max: 16, call_timeout_ms: 2000, retry_timeout_ms: 86400000}\n";

// The value of `key` in a line of a log: "… port=7000 …"; 0 if it is not there.
int NumberIn(absl::string_view line, absl::string_view key) {
  for (const absl::string_view word : absl::StrSplit(line, ' ')) {
    int number = 0;
    if (absl::StartsWith(word, key) && absl::SimpleAtoi(word.substr(key.size()), &number)) return number;
  }
  return 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PsCluster>> PsCluster::Create(Options options) {
  std::unique_ptr<PsCluster> cluster(new PsCluster(std::move(options)));
  for (uint32_t server = 0; server < cluster->servers(); ++server) {
    Ps& ps = cluster->ps_[server];
    ps.log.open(absl::StrCat(cluster->options_.folder, "/ps-", server, ".log"));
    LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<TcpProxy> proxy, TcpProxy::Start());
    ps.proxies.push_back(std::move(proxy));
  }
  cluster->config_file_ = absl::StrCat(cluster->options_.folder, "/chaos.yaml");
  std::ofstream(cluster->config_file_) << kConfig;
  std::vector<std::string> sets = {absl::StrCat("cluster.servers=", cluster->servers()),
                                   absl::StrCat("coordinator.address=", cluster->ProxyOf(0)->address())};
  if (!cluster->options_.data_dir.empty()) {
    sets.push_back(absl::StrCat("server.data_dir=", cluster->options_.data_dir));
  }
  std::vector<std::string>& all = cluster->options_.sets;
  all.insert(all.begin(), sets.begin(), sets.end());
  LODESTONE_ASSIGN_OR_RETURN(cluster->config_, LoadConfig(cluster->config_file_, all));
  // A limit on the size of files is one of the faults; that it is reached shall be an error of the write, no signal.
  signal(SIGXFSZ, SIG_IGN);
  return cluster;
}

PsCluster::~PsCluster() {
  for (uint32_t server = 0; server < servers(); ++server) {
    if (Runs(server)) Kill(server);
  }
}

absl::Status PsCluster::Start(uint32_t server) {
  Ps& ps = ps_[server];
  LODESTONE_CHECK(ps.child == nullptr);
  std::vector<std::string> argv = {options_.ps_binary, "--config", config_file_};
  std::vector<std::string> sets = options_.sets;
  sets.push_back(absl::StrCat("server.index=", server));
  sets.push_back("server.listen=127.0.0.1:0");
  sets.push_back(absl::StrCat("server.advertise=", ProxyOf(server)->address()));
  for (const std::string& set : sets) {
    argv.push_back("--set");
    argv.push_back(set);
  }
  ps.port = 0;
  ps.may_end = false;
  LODESTONE_ASSIGN_OR_RETURN(ps.child, Child::Start(absl::StrCat("ps ", server), argv));
  return absl::OkStatus();
}

void PsCluster::OnLine(uint32_t server, absl::string_view line) {
  Ps& ps = ps_[server];
  ps.log << line << "\n";
  if (ps.port != 0 || !absl::StrContains(line, "server: listens on=")) return;
  ps.port = NumberIn(line, "port=");
  if (ps.port != 0) ProxyOf(server)->SetTarget(ps.port);
}

void PsCluster::OnEnd(uint32_t server) {
  Ps& ps = ps_[server];
  const std::string outcome = ps.child->Outcome();
  ps.outcome = outcome.substr(outcome.find(") ") + 2);
  ps.log << "chaos: " << outcome << std::endl;
  if (!ps.may_end) deaths_.push_back(outcome);
  ps.child = nullptr;
  ps.port = 0;
  ProxyOf(server)->SetTarget(std::nullopt);
}

void PsCluster::Kill(uint32_t server) {
  Ps& ps = ps_[server];
  LODESTONE_CHECK(ps.child != nullptr);
  ps.may_end = true;
  ps.child->Signal(SIGKILL);
  while (!ps.child->Reap([&](absl::string_view line) { OnLine(server, line); })) {
    poll(nullptr, 0, 1);
    ps.child->ReadOutput([&](absl::string_view line) { OnLine(server, line); });
  }
  OnEnd(server);
}

void PsCluster::Terminate(uint32_t server) {
  ps_[server].may_end = true;
  ps_[server].child->Signal(SIGTERM);
}

absl::Status PsCluster::MoveAddress(uint32_t server) {
  LODESTONE_CHECK(server > 0 && !Runs(server));
  Ps& ps = ps_[server];
  ps.proxy = 1 - ps.proxy;
  if (ps.proxy < ps.proxies.size()) return absl::OkStatus();
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<TcpProxy> proxy, TcpProxy::Start());
  ps.proxies.push_back(std::move(proxy));
  return absl::OkStatus();
}

void PsCluster::SetLinks(const TcpProxy::Link& link) {
  for (uint32_t server = 0; server < servers(); ++server) ProxyOf(server)->SetLink(link);
}

std::string PsCluster::DataFolder(uint32_t server) const { return absl::StrCat(options_.data_dir, "/ps-", server); }

absl::StatusOr<v1::StatusResponse> PsCluster::StatusOf(uint32_t server, int timeout_ms) const {
  // Not through its proxy, where it might get lost.
  return FetchStatus(absl::StrCat("127.0.0.1:", ps_[server].port), timeout_ms);
}

void PsCluster::Pump(int ms) {
  std::vector<pollfd> fds;
  for (const Ps& ps : ps_) {
    if (ps.child != nullptr && ps.child->output_fd() >= 0) fds.push_back({ps.child->output_fd(), POLLIN, 0});
  }
  poll(fds.data(), fds.size(), ms);
  for (uint32_t server = 0; server < servers(); ++server) {
    const auto on_line = [this, server](absl::string_view line) { OnLine(server, line); };
    if (!Runs(server)) continue;
    ps_[server].child->ReadOutput(on_line);
    if (ps_[server].child->Reap(on_line)) OnEnd(server);
  }
}

std::vector<std::string> PsCluster::TakeDeaths() { return std::exchange(deaths_, {}); }

}  // namespace lodestone::chaos
