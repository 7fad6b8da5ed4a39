#include "tests/common/rpc/etcd_cluster.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/channel_arguments.h"
#include "proto/etcd.grpc.pb.h"

namespace lodestone {
namespace {

constexpr char kProgram[] = "/usr/bin/etcd";
constexpr std::chrono::seconds kAgreementMax{60};
constexpr std::chrono::milliseconds kStatusMax{500};

// A port of the loopback interface. While the socket that is returned in `reservation` is open, only those who ask for
// this very port get it, as etcd does. (etcd cannot be told to take a free one.)
absl::StatusOr<int> ReservePort(int* reservation) {
  const int on = 1;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  *reservation = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (*reservation < 0 || setsockopt(*reservation, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(*reservation, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      getsockname(*reservation, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return absl::ErrnoToStatus(errno, "a port for etcd");
  }
  return ntohs(address.sin_port);
}

std::string Url(int port, bool tls = false) { return absl::StrCat(tls ? "https" : "http", "://127.0.0.1:", port); }

std::string LastLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) last = line;
  return last;
}

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdCluster>> EtcdCluster::Start(int members, const std::string& folder,
                                                                std::optional<Tls> tls) {
  if (access(kProgram, X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("etcd is not installed: there is no ", kProgram,
                                            ", of Debian's package etcd-server; tools/install --test installs it"));
  }
  LODESTONE_RETURN_IF_ERROR(MakeFolders(folder));
  std::unique_ptr<EtcdCluster> cluster(new EtcdCluster());
  if (tls.has_value()) {
    v1::SecurityConfig files;
    files.set_authorities(tls->authorities);
    files.set_certificate(tls->certificate);
    files.set_key(tls->key);
    LODESTONE_ASSIGN_OR_RETURN(cluster->credentials_, Credentials::Make(files));
    cluster->tls_ = std::move(tls);
  }
  for (int member = 0; member < members; ++member) {
    Member& next = cluster->members_.emplace_back();
    next.folder = absl::StrCat(folder, "/etcd-", member);
    LODESTONE_ASSIGN_OR_RETURN(next.client_port, ReservePort(&cluster->reservations_.emplace_back()));
    LODESTONE_ASSIGN_OR_RETURN(next.peer_port, ReservePort(&cluster->reservations_.emplace_back()));
  }
  for (int member = 0; member < members; ++member) LODESTONE_RETURN_IF_ERROR(cluster->StartMember(member));
  LODESTONE_RETURN_IF_ERROR(cluster->AwaitLeader().status());
  return cluster;
}

EtcdCluster::~EtcdCluster() {
  for (const int reservation : reservations_) close(reservation);
}

absl::Status EtcdCluster::StartMember(int member) {
  Member& self = members_[member];
  std::string all;
  for (int other = 0; other < members(); ++other) {
    absl::StrAppend(&all, other == 0 ? "" : ",", "etcd-", other, "=", Url(members_[other].peer_port));
  }
  const std::string client_url = Url(self.client_port, tls_.has_value()), peer_url = Url(self.peer_port);
  std::vector<std::string> argv = {kProgram};
  const auto set = [&argv](const char* flag, const std::string& value) { argv.insert(argv.end(), {flag, value}); };
  set("--name", absl::StrCat("etcd-", member));
  set("--data-dir", self.folder);
  set("--logger", "zap");
  set("--log-outputs", absl::StrCat(self.folder, ".log"));
  set("--listen-client-urls", client_url);
  set("--advertise-client-urls", client_url);
  set("--listen-peer-urls", peer_url);
  set("--initial-advertise-peer-urls", peer_url);
  set("--initial-cluster", all);
  set("--initial-cluster-token", members_[0].folder);
  if (tls_.has_value()) {
    set("--trusted-ca-file", tls_->authorities);
    set("--cert-file", tls_->certificate);
    set("--key-file", tls_->key);
    argv.push_back("--client-cert-auth");
  }
  LODESTONE_ASSIGN_OR_RETURN(self.child, psctl::Child::Start(absl::StrCat("etcd ", member), argv));
  return absl::OkStatus();
}

std::string EtcdCluster::endpoint(int member) const { return absl::StrCat("127.0.0.1:", port(member)); }

std::vector<std::string> EtcdCluster::endpoints() const {
  std::vector<std::string> all;
  for (int member = 0; member < members(); ++member) all.push_back(endpoint(member));
  return all;
}

void EtcdCluster::Kill(int member) {
  Member& self = members_[member];
  LODESTONE_CHECK(self.child != nullptr);
  self.child->Signal(SIGKILL);
  while (!self.child->Reap([](absl::string_view) {})) poll(nullptr, 0, 1);
  self.child = nullptr;
}

absl::Status EtcdCluster::Restart(int member) {
  if (Runs(member)) Kill(member);
  return StartMember(member);
}

absl::Status EtcdCluster::CheckAlive() {
  for (Member& member : members_) {
    if (member.child == nullptr || !member.child->Reap([](absl::string_view) {})) continue;
    const std::string outcome = member.child->Outcome();
    member.child = nullptr;
    return absl::UnavailableError(
        absl::StrCat(outcome, "; the last line of ", member.folder, ".log: ", LastLineOf(member.folder + ".log")));
  }
  return absl::OkStatus();
}

int EtcdCluster::LeaderByAll() const {
  std::map<uint64_t, int> by_id;
  uint64_t leader = 0;
  for (int member = 0; member < members(); ++member) {
    if (!Runs(member)) continue;
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + kStatusMax);
    etcdserverpb::StatusResponse status;
    const auto channel = ChannelWith(credentials_, endpoint(member), grpc::ChannelArguments());
    const bool answered = etcdserverpb::Maintenance::NewStub(channel)->Status(&context, {}, &status).ok();
    if (!answered || (leader != 0 && status.leader() != leader)) return -1;
    leader = status.leader();
    by_id[status.header().member_id()] = member;
  }
  const auto found = by_id.find(leader);
  return found == by_id.end() ? -1 : found->second;
}

absl::StatusOr<int> EtcdCluster::AwaitLeader() {
  const auto give_up = std::chrono::steady_clock::now() + kAgreementMax;
  while (std::chrono::steady_clock::now() < give_up) {
    const int leader = LeaderByAll();
    LODESTONE_RETURN_IF_ERROR(CheckAlive());
    if (leader >= 0) return leader;
    poll(nullptr, 0, 1);
  }
  return absl::DeadlineExceededError("the members of etcd do not agree on a leader");
}

}  // namespace lodestone
