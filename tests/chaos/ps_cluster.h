// The ps processes of a chaos run, each behind proxies, with everything they say in files.
//
// Single-threaded: every process dies with the thread that made it. A test that waits calls Pump meanwhile, which
// passes on what the processes say and notices those that end.
//
// The processes and proxies end with this object; the files stay.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/admin.pb.h"
#include "proto/config.pb.h"
#include "tests/chaos/socket_owners.h"
#include "tests/chaos/tcp_proxy.h"
#include "tools/psctl/local/child_process.h"

namespace lodestone::chaos {

class PsCluster {
 public:
  struct Options {
    std::string ps_binary;
    // Of another version; then each start of a ps takes the version that its life before did not have, and the first
    // ones are mixed. Empty: there is one version.
    std::string other_ps_binary;
    std::string folder;      // For what the ps write and say; exists.
    std::string data_dir;    // server.data_dir; empty: they keep nothing.
    bool own_disks = false;  // Each has its own folder in data_dir instead, with all that is its.
    uint32_t servers = 2;
    std::vector<std::string> sets;   // Further settings of the ps, "a.b=VALUE".
    std::vector<std::string> zones;  // server.zone, by server; empty: none.
  };
  static absl::StatusOr<std::unique_ptr<PsCluster>> Create(Options options);
  ~PsCluster();

  uint32_t servers() const { return options_.servers; }
  bool own_disks() const { return options_.own_disks; }
  // What clients connect with.
  const v1::Config& config() const { return config_; }

  // A further setting of the ps that are started from now on.
  void AddSet(std::string set) { options_.sets.push_back(std::move(set)); }
  // Starts a ps; it is there once Listens.
  absl::Status Start(uint32_t server);
  // It takes connections. (It may still wait for others.)
  bool Listens(uint32_t server) const { return PortOf(server) != 0; }
  // Of this machine, where the process listens; 0: it does not yet.
  int PortOf(uint32_t server) const { return ps_[server].port; }
  bool Runs(uint32_t server) const { return ps_[server].child != nullptr; }
  // It has brought back what it had, and takes part.
  bool Serves(uint32_t server) const { return ps_[server].serves; }
  // kill -9; returns once it is dead and refuses connections. REQUIRES: Runs.
  void Kill(uint32_t server);
  // SIGTERM. The ps may end from now on.
  void Terminate(uint32_t server);
  // Whether it is no fault from now on if the process ends by itself. After a start it is one.
  void SetMayEnd(uint32_t server, bool may_end) { ps_[server].may_end = may_end; }
  void Signal(uint32_t server, int signal) { ps_[server].child->Signal(signal); }
  // Sends SIGSTOP, and waits until none of its threads runs: one may still answer after the signal was sent.
  void Stop(uint32_t server);
  pid_t PidOf(uint32_t server) const { return ps_[server].child->pid(); }
  // How its last process ended: "ended" or "failed with exit code 1: …".
  const std::string& OutcomeOf(uint32_t server) const { return ps_[server].outcome; }

  // Clients reach the ps through it.
  TcpProxy* ProxyOf(uint32_t server) { return ps_[server].proxies[ps_[server].proxy].get(); }
  // Gives the ps the other of its two proxies, so that it comes back at another address. REQUIRES: !Runs. Not ps 0,
  // whose address is that of the coordinator too.
  absl::Status MoveAddress(uint32_t server);
  void SetLinks(const TcpProxy::Link& link);

  // What is between two ps besides, or between a ps `a` and the clients (`b` is kClients).
  static constexpr uint32_t kClients = UINT32_MAX >> 1;
  struct Between {
    int64_t delay_ms = 0;
    bool holds_to_b = false;  // No byte passes from a to b, be it a request or a reply.
    bool holds_to_a = false;
  };
  void SetBetween(uint32_t a, uint32_t b, const Between& between);
  // Resets all connections between them.
  void CutBetween(uint32_t a, uint32_t b);
  // Nothing is between anybody.
  void ClearBetween();

  // The ps' own server.data_dir.
  std::string DataDirOf(uint32_t server) const;
  // "<server.data_dir>/ps-0".
  std::string DataFolder(uint32_t server) const;
  // Deletes all that it has on disk. REQUIRES: own_disks, !Runs.
  absl::Status DeleteDisk(uint32_t server);
  absl::StatusOr<v1::StatusResponse> StatusOf(uint32_t server, int timeout_ms) const;

  // Waits up to `ms` for the processes to say something or end.
  void Pump(int ms);
  // Processes that have ended and must not have, in words, since the last call.
  std::vector<std::string> TakeDeaths();

 private:
  struct Ps {
    std::unique_ptr<psctl::Child> child;             // Null: none runs.
    std::vector<std::unique_ptr<TcpProxy>> proxies;  // One or two.
    size_t proxy = 0;                                // That is in use.
    std::ofstream log;
    uint32_t starts = 0;
    int port = 0;  // Where the process listens; 0: not yet.
    bool serves = false;
    bool may_end = false;
    std::string outcome;
  };

  explicit PsCluster(Options options) : options_(std::move(options)), ps_(options_.servers) {}
  absl::StatusOr<std::unique_ptr<TcpProxy>> StartProxy();
  void SetLinkOf(uint32_t server, uint32_t client, const TcpProxy::Link& link);
  void OnLine(uint32_t server, absl::string_view line);
  void OnEnd(uint32_t server);

  Options options_;
  v1::Config config_;
  std::string config_file_;
  SocketOwners sockets_;  // Of the ps by their indices, and of the clients. The proxies use it.
  std::vector<Ps> ps_;
  std::vector<std::string> deaths_;
};

}  // namespace lodestone::chaos
