// A whole ps: store, broadcaster, services, the coordinator if this is the ps with index 0 (or with coordinator.etcd:
// whenever it is elected), and the membership in the cluster. main.cc adds the command line and signals; tests run
// several in one process.
//
// Life: Start binds and takes calls (from then on others can join, ask for the status or be sent away for a while); the
// ps joins the coordinator and waits for the shard map by itself; WaitUntilReady returns once it owns its shards.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/http/http_server.h"
#include "common/rpc/coordinator_channel.h"
#include "common/wire/shard_map.h"
#include "grpcpp/server.h"
#include "proto/admin.pb.h"
#include "proto/config.pb.h"
#include "server/auth/security.h"
#include "server/coordinator/coordinator_host.h"
#include "server/coordinator_client.h"
#include "server/durability/storage.h"
#include "server/monitoring/event_log.h"
#include "server/readiness/lost_shards_wait.h"
#include "server/readiness/readiness.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/broadcaster.h"
#include "server/rpc/call_memory.h"
#include "server/rpc/exchange.h"
#include "server/rpc/parameter_service.h"
#include "server/rpc/process_identity.h"
#include "server/status_reporter.h"
#include "server/store/store.h"

namespace lodestone::server {

class Replication;

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
  const std::string& address() const { return identity_.address; }

  // What on_ready is called with; CANCELLED if Shutdown comes first.
  absl::Status WaitUntilReady();

  // Leaves the cluster, takes no new calls, gives those under way `grace_ms` to end, cancels the rest. Returns when all
  // have ended. Only the first call counts.
  void Shutdown(int64_t grace_ms = limits::kShutdownGraceMs);

 private:
  ServerProcess(const v1::Config& config, std::function<void(absl::Status)> on_ready,
                std::unique_ptr<Security> security);

  AdminService::Handlers AdminHandlers();
  // Binds and starts everything.
  absl::Status StartParts();
  absl::Status PrepareCoordinator();
  void StartReplication();
  absl::Status Listen();
  std::unique_ptr<CoordinatorChannel> ConnectCoordinator();
  void StartMember();
  void OnRoute(absl::StatusOr<ShardMap> map);
  // A newer map than those before.
  void OnMap(const ShardMap& map);
  // Brings the shards back and serves them.
  absl::Status Begin(const ShardMap& map);
  void SetReady(absl::Status status);
  void CheckDisk();
  void OnHeartbeat(const v1::HeartbeatResponse& response);
  void OnCoordinator(bool serves);
  // Of a ps whose shards have no followers, and which serves them also without a lease: ABORTED once another process
  // has its place.
  absl::Status CheckPlace() const;
  void AddEvent(absl::string_view kind, absl::string_view text) { events_.Add(kind, name_, text); }
  void RunTicks();
  std::shared_ptr<CoordinatorClient> MemberNow() const;

  absl::Status StartHttp();
  ProcessIdentity IdentityNow() const;
  StatusReporter::Sources StatusSources();

  // Constant after Start.
  const v1::Config config_;
  const std::string name_;  // "ps 1".
  const std::function<void(absl::Status)> on_ready_;

  mutable Mutex mu_;
  CondVar changed_;
  std::string local_socket_;  // Its name; empty if there is none. Constant after Listen.
  ProcessIdentity identity_;  // Constant after Start; until then, calls that come already see it under mu_.
  std::optional<absl::Status> ready_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // Synchronise themselves. Each uses only what stands above it; what gRPC calls outlives the gRPC server.
  AnchoredTime time_;
  const std::unique_ptr<Security> security_;
  EventLog events_;
  Readiness readiness_;
  RefusedPushes refused_;
  Store store_;
  LostShardsWait lost_shards_;
  std::unique_ptr<Storage> storage_;  // Null if nothing is kept on disk; constant after Start.
  CallMemory call_memory_;
  Broadcaster broadcaster_;
  std::unique_ptr<Replication> replication_;  // Where shards have followers.
  CoordinatorHost coordinator_;
  std::optional<StatusReporter> status_;  // Constant after Start.
  Exchange exchange_;
  ParameterService parameters_;
  AdminService admin_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<HttpServer> http_;  // Null if it has no HTTP port. Its handlers use all of the above.
  std::shared_ptr<CoordinatorClient> member_ ABSL_GUARDED_BY(mu_);  // Null before StartMember.
  std::atomic<const CoordinatorClient*> lease_of_{nullptr};         // The same, for calls that ask often.
  std::thread ticks_;
  std::thread begin_;          // Runs Begin. Started by the member's thread; joined when that has ended.
  bool disk_failing_ = false;  // Owned by ticks_: updates cannot be made durable.
};

}  // namespace lodestone::server
