// A whole ps: store, broadcaster, services, the coordinator if this is the ps with index 0 (or with coordinator.etcd:
// whenever it is elected), and the membership in the cluster. main.cc adds the command line and signals; tests run
// several in one process.
//
// Life: Start binds and takes calls (from then on others can join, ask for the status or be told to wait); the ps joins
// the coordinator and waits for the shard map by itself; WaitUntilReady returns once it owns its shards.
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/limits.h"
#include "proto/config.pb.h"

namespace lodestone::server {

class ServerProcess {
 public:
  // `on_ready` (may be empty) runs once, on a thread of the process's own: OK when the ps owns its shards, or why it
  // never will (not in time, refused); it must not call back into the process. INVALID_ARGUMENT for addresses that
  // cannot work; UNAVAILABLE "cannot listen on ..." if the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<ServerProcess>> Start(const v1::Config& config,
                                                              std::function<void(absl::Status)> on_ready = nullptr);
  // Shuts down if Shutdown was not called.
  ~ServerProcess();

  // Where others reach it, host:port.
  const std::string& address() const;

  // What on_ready is told; CANCELLED if Shutdown comes first.
  absl::Status WaitUntilReady();

  // Leaves the cluster, takes no new calls, gives those under way `grace_ms` to end, cancels the rest. Returns when all
  // have ended. Only the first call counts.
  void Shutdown(int64_t grace_ms = limits::kShutdownGraceMs);

 private:
  class Impl;
  explicit ServerProcess(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lodestone::server
