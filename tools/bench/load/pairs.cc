#include "tools/bench/load/pairs.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "tools/bench/load/broadcast_load.h"
#include "tools/bench/load/minimal_load.h"
#include "tools/bench/load/raw_load.h"

namespace lodestone::bench {
namespace {

absl::StatusOr<Sample> MeasureFirst(const std::vector<std::unique_ptr<Peer>>& peers, uint32_t count, const Order& order,
                                    const ServerPids& server, int window_ms) {
  return MeasureWindow(std::span(peers).first(count), std::vector<Order>(count, order), server, window_ms);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RawPair>> RawPair::Start(Transport transport, uint32_t clients, size_t memory_bytes) {
  std::unique_ptr<RawPair> pair(new RawPair);
  LODESTONE_ASSIGN_OR_RETURN(pair->listener_, Listen(transport));
  const Listener& listener = pair->listener_;
  LODESTONE_ASSIGN_OR_RETURN(pair->server_,
                             Peer::StartServer("the limit's server", [&] { ServeRaw(listener, memory_bytes); }));
  for (uint32_t i = 0; i < clients; ++i) {
    LODESTONE_ASSIGN_OR_RETURN(std::unique_ptr<Peer> client,
                               Peer::Start(absl::StrCat("the limit's client ", i), RawLoad(listener, memory_bytes)));
    pair->clients_.push_back(std::move(client));
  }
  return pair;
}

absl::StatusOr<std::unique_ptr<RawPair>> RawPair::StartFanout(uint32_t subscribers, uint64_t bytes) {
  std::unique_ptr<RawPair> pair(new RawPair);
  LODESTONE_ASSIGN_OR_RETURN(pair->listener_, Listen(Transport::kTcp));
  const Listener& listener = pair->listener_;
  LODESTONE_ASSIGN_OR_RETURN(pair->server_,
                             Peer::StartServer("the limit's server", [&] { ServeFanout(listener, bytes); }));
  for (uint32_t i = 0; i < subscribers; ++i) {
    LODESTONE_ASSIGN_OR_RETURN(
        std::unique_ptr<Peer> client,
        Peer::Start(absl::StrCat("the limit's subscriber ", i), FanoutLoad(listener, bytes, /*pusher=*/i == 0)));
    pair->clients_.push_back(std::move(client));
  }
  return pair;
}

RawPair::~RawPair() {
  clients_.clear();
  server_.reset();
  if (listener_.fd >= 0) close(listener_.fd);
}

absl::StatusOr<Sample> RawPair::Measure(uint32_t clients, const Order& order, int window_ms) const {
  return MeasureFirst(clients_, clients, order, server_->pid(), window_ms);
}

absl::StatusOr<std::unique_ptr<MinimalPair>> MinimalPair::Start(const RowsWork& work) {
  std::unique_ptr<MinimalPair> pair(new MinimalPair);
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "making a pipe");
  absl::StatusOr<std::unique_ptr<Peer>> server =
      Peer::StartServer("the minimal server", [&] { ServeMinimal(work.dim, pipe_fds[1]); });
  close(pipe_fds[1]);
  uint16_t port = 0;
  const bool told = server.ok() && read(pipe_fds[0], &port, sizeof(port)) == sizeof(port) && port != 0;
  close(pipe_fds[0]);
  LODESTONE_RETURN_IF_ERROR(server.status());
  if (!told) return absl::UnavailableError("the minimal server found no port to listen at");
  pair->server_ = *std::move(server);
  LODESTONE_ASSIGN_OR_RETURN(
      std::unique_ptr<Peer> client,
      Peer::Start("the minimal server's client", MinimalLoad(absl::StrCat("127.0.0.1:", port), work)));
  pair->clients_.push_back(std::move(client));
  return pair;
}

absl::StatusOr<Sample> MinimalPair::Measure(const Order& order, int window_ms) const {
  return MeasureFirst(clients_, 1, order, server_->pid(), window_ms);
}

absl::StatusOr<std::unique_ptr<PsPair>> PsPair::Start(const Options& options, uint32_t shards, uint32_t clients,
                                                      const MakeLoad& make_load) {
  std::unique_ptr<PsPair> pair(new PsPair);
  LODESTONE_ASSIGN_OR_RETURN(pair->ps_, LocalPs::Start(options, shards));
  for (uint32_t i = 0; i < clients; ++i) {
    absl::StatusOr<std::unique_ptr<Peer>> client =
        Peer::Start(absl::StrCat("client ", i), make_load(i, pair->ps_->config()));
    if (!client.ok()) {
      return absl::Status(client.status().code(), absl::StrCat(client.status().message(), pair->ps_->Ended()));
    }
    pair->clients_.push_back(*std::move(client));
  }
  return pair;
}

absl::StatusOr<Sample> PsPair::Measure(uint32_t clients, const Order& order, int window_ms) const {
  const ServerPids server(ps_->pids(), [this] { return ps_->CopiedBytes(); });
  return MeasureFirst(clients_, clients, order, server, window_ms);
}

uint64_t PsPair::ServerBytes() const {
  uint64_t bytes = 0;
  for (const pid_t pid : ps_->pids()) {
    std::ifstream statm(absl::StrCat("/proc/", pid, "/statm"));
    uint64_t size_pages = 0, resident_pages = 0;
    if (statm >> size_pages >> resident_pages) bytes += resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }
  return bytes;
}

}  // namespace lodestone::bench
