// A cluster of real etcd processes on this machine, for tests. They end with the thread that made it.
//
// Not thread-safe. Needs Debian's package etcd-server, which tools/install --test installs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/security/credentials.h"
#include "tools/psctl/local/child_process.h"

namespace lodestone {

class EtcdCluster {
 public:
  // Paths of PEM files. With them clients come by TLS only, and must show a certificate of the authorities.
  struct Tls {
    std::string authorities;
    std::string certificate;  // Of 127.0.0.1: of the members, and of this class's own calls.
    std::string key;
  };
  // Starts `members` processes that keep what they have, and say, in `folder`. Returns when they have a leader.
  static absl::StatusOr<std::unique_ptr<EtcdCluster>> Start(int members, const std::string& folder,
                                                            std::optional<Tls> tls = std::nullopt);

  ~EtcdCluster();

  int members() const { return static_cast<int>(members_.size()); }
  // Where a member takes clients, 127.0.0.1:port.
  std::string endpoint(int member) const;
  std::vector<std::string> endpoints() const;
  int port(int member) const { return members_[member].client_port; }
  bool Runs(int member) const { return members_[member].child != nullptr; }

  // kill -9; returns once it is dead. REQUIRES: Runs.
  void Kill(int member);
  // Starts it again with what it had, at the same address. AwaitLeader says when it belongs to the others again.
  absl::Status Restart(int member);
  void Signal(int member, int signal) { members_[member].child->Signal(signal); }

  // Waits until all that run agree on a leader among themselves, and returns it. An error if one of them ends, or they
  // do not agree in a minute.
  absl::StatusOr<int> AwaitLeader();

 private:
  struct Member {
    std::unique_ptr<psctl::Child> child;  // Null: it does not run.
    std::string folder;
    int client_port = 0;
    int peer_port = 0;
  };
  EtcdCluster() = default;
  absl::Status StartMember(int member);
  // That none has ended by itself; with the end of its log, if so.
  absl::Status CheckAlive();
  // The leader if all that run say the same; -1 if not.
  int LeaderByAll() const;

  std::optional<Tls> tls_;
  CredentialsRef credentials_;  // Null without TLS.
  std::vector<Member> members_;
  std::vector<int> reservations_;  // Sockets that keep the members' ports from others.
};

}  // namespace lodestone
