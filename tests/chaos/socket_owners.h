// Which of the processes that it knows a TCP connection on this machine is of, by the kernel's lists of sockets
// (/proc/net/tcp, /proc/PID/fd): they need not say who they are.
//
// Thread-safe.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <optional>

#include "common/base/mutex.h"

namespace lodestone::chaos {

class SocketOwners {
 public:
  // The sockets of process `pid` are those of `name` from now on.
  void Add(pid_t pid, int name);
  void Remove(pid_t pid);

  // Who has the end with local port `port` of a connection to port `to`; nullopt: none of those that are known.
  std::optional<int> NameOf(int port, int to) const;

 private:
  mutable Mutex mu_;
  std::map<pid_t, int> names_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::chaos
