#include "tests/chaos/ps_cluster.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/config/config.h"
#include "tools/psctl/client/admin_client.h"

namespace lodestone::chaos {
namespace {

// Small shards and segments, so that all kinds of borders are crossed often; a client waits long enough for answers not
// to be asked again in vain by a busy machine, and never gives up.
constexpr char kConfig[] =
    "cluster: {name: chaos, workers: 64, shards: 16, seed: 5}\n"
    "coordinator: {lease_ms: 10000, join_timeout_ms: 120000}\n"
    "server: {executors: 2, log_segment_bytes: 262144}\n"
    "checkpoint: {every_ms: 3000, keep: 2, full_every: 3}\n"
    "worker: {pushes_in_flight_max: 16, call_timeout_ms: 2000, retry_timeout_ms: 21600000}\n";

// The value of `key` in a line of a log: "… port=7000 …"; 0 if it is not there.
int NumberIn(absl::string_view line, absl::string_view key) {
  for (const absl::string_view word : absl::StrSplit(line, ' ')) {
    int number = 0;
    if (absl::StartsWith(word, key) && absl::SimpleAtoi(word.substr(key.size()), &number)) return number;
  }
  return 0;
}

}  // namespace

void PsCluster::Stop(uint32_t server) {
  Signal(server, SIGSTOP);
  siginfo_t info;
  LODESTONE_CHECK(waitid(P_PID, static_cast<id_t>(PidOf(server)), &info, WSTOPPED | WEXITED | WNOWAIT) == 0);
}

absl::StatusOr<std::unique_ptr<PsCluster>> PsCluster::Create(Options options) {
  std::unique_ptr<PsCluster> cluster(new PsCluster(std::move(options)));
  cluster->sockets_.Add(getpid(), kClients);
  for (uint32_t server = 0; server < cluster->servers(); ++server) {
    Ps& ps = cluster->ps_[server];
    ps.log.open(absl::StrCat(cluster->options_.folder, "/ps-", server, ".log"));
    LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<TcpProxy> proxy, cluster->StartProxy());
    ps.proxies.push_back(std::move(proxy));
  }
  cluster->config_file_ = absl::StrCat(cluster->options_.folder, "/chaos.yaml");
  std::ofstream(cluster->config_file_) << kConfig;
  std::vector<std::string> sets = {absl::StrCat("cluster.servers=", cluster->servers()),
                                   absl::StrCat("coordinator.address=", cluster->ProxyOf(0)->address())};
  if (!cluster->options_.data_dir.empty())
    sets.push_back("server.data_dir=" + cluster->DataDirOf(0));  // Start: each's.
  std::vector<std::string>& all = cluster->options_.sets;
  all.insert(all.begin(), sets.begin(), sets.end());
  LODESTONE_ASSIGN_OR_RETURN(cluster->config_, LoadConfig(cluster->config_file_, all));
  // A limit on the size of files is one of the faults; that it is reached shall be an error of the write, no signal.
  signal(SIGXFSZ, SIG_IGN);
  return cluster;
}

absl::StatusOr<std::unique_ptr<TcpProxy>> PsCluster::StartProxy() {
  return TcpProxy::Start([this](int port, int to) { return sockets_.NameOf(port, to); });
}

PsCluster::~PsCluster() {
  for (uint32_t server = 0; server < servers(); ++server) {
    if (Runs(server)) Kill(server);
  }
}

absl::Status PsCluster::Start(uint32_t server) {
  Ps& ps = ps_[server];
  LODESTONE_CHECK(ps.child == nullptr);
  const bool other = !options_.other_ps_binary.empty() && (server + ps.starts++) % 2 == 1;
  std::vector<std::string> argv = {other ? options_.other_ps_binary : options_.ps_binary, "--config", config_file_};
  std::vector<std::string> sets = options_.sets;
  sets.push_back(absl::StrCat("server.index=", server));
  if (!options_.data_dir.empty()) sets.push_back(absl::StrCat("server.data_dir=", DataDirOf(server)));
  if (!options_.zones.empty()) sets.push_back(absl::StrCat("server.zone=", options_.zones[server]));
  sets.push_back("server.listen=127.0.0.1:0");
  sets.push_back(absl::StrCat("server.advertise=", ProxyOf(server)->address()));
  for (const std::string& set : sets) {
    argv.push_back("--set");
    argv.push_back(set);
  }
  ps.port = 0;
  ps.serves = false;
  ps.may_end = false;
  LODESTONE_ASSIGN_OR_RETURN(ps.child, psctl::Child::Start(absl::StrCat("ps ", server), argv));
  sockets_.Add(ps.child->pid(), static_cast<int>(server));
  return absl::OkStatus();
}

void PsCluster::OnLine(uint32_t server, absl::string_view line) {
  Ps& ps = ps_[server];
  ps.log << line << "\n";
  ps.serves |= absl::StrContains(line, "server: serves shards=");
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
  sockets_.Remove(ps.child->pid());
  ps.child = nullptr;
  ps.port = 0;
  ps.serves = false;
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
  LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<TcpProxy> proxy, StartProxy());
  ps.proxies.push_back(std::move(proxy));
  return absl::OkStatus();
}

void PsCluster::SetLinks(const TcpProxy::Link& link) {
  for (uint32_t server = 0; server < servers(); ++server) ProxyOf(server)->SetLink(link);
}

void PsCluster::SetLinkOf(uint32_t server, uint32_t client, const TcpProxy::Link& link) {
  for (const auto& proxy : ps_[server].proxies) proxy->SetLinkOf(static_cast<int>(client), link);
}

void PsCluster::SetBetween(uint32_t a, uint32_t b, const Between& between) {
  if (b != kClients) {
    SetLinkOf(
        b, a,
        {.delay_ms = between.delay_ms, .holds_requests = between.holds_to_b, .holds_replies = between.holds_to_a});
  }
  SetLinkOf(a, b,
            {.delay_ms = between.delay_ms, .holds_requests = between.holds_to_a, .holds_replies = between.holds_to_b});
}

void PsCluster::CutBetween(uint32_t a, uint32_t b) {
  if (b != kClients) {
    for (const auto& proxy : ps_[b].proxies) proxy->CutOf(static_cast<int>(a));
  }
  for (const auto& proxy : ps_[a].proxies) proxy->CutOf(static_cast<int>(b));
}

void PsCluster::ClearBetween() {
  for (uint32_t a = 0; a < servers(); ++a) {
    for (uint32_t b = 0; b < servers(); ++b) SetLinkOf(a, b, {});
    SetLinkOf(a, kClients, {});
  }
}

std::string PsCluster::DataDirOf(uint32_t server) const {
  return options_.own_disks ? absl::StrCat(options_.data_dir, "/disk-", server) : options_.data_dir;
}

std::string PsCluster::DataFolder(uint32_t server) const { return absl::StrCat(DataDirOf(server), "/ps-", server); }

absl::Status PsCluster::DeleteDisk(uint32_t server) {
  LODESTONE_CHECK(options_.own_disks && !Runs(server));
  std::error_code error;
  std::filesystem::remove_all(DataDirOf(server), error);
  if (!error) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(DataDirOf(server), ": cannot be deleted: ", error.message()));
}

absl::StatusOr<v1::StatusResponse> PsCluster::StatusOf(uint32_t server, int timeout_ms) const {
  // Not through its proxy, where it might get lost.
  return psctl::FetchStatus(absl::StrCat("127.0.0.1:", ps_[server].port), timeout_ms);
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
