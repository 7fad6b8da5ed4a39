// What a ServerProcess is made of. Included by process.cc (start, end, what goes on between) and process_status.cc
// (what it tells) only.
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
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/http/http_server.h"
#include "common/rpc/coordinator_channel.h"
#include "common/wire/shard_map.h"
#include "grpcpp/server.h"
#include "proto/admin.pb.h"
#include "proto/config.pb.h"
#include "server/auth/security.h"
#include "server/coordinator_client.h"
#include "server/coordinator_host.h"
#include "server/durability/data_dir.h"
#include "server/monitoring/event_log.h"
#include "server/process.h"
#include "server/replication/replication.h"
#include "server/rpc/admin_service.h"
#include "server/rpc/broadcaster.h"
#include "server/rpc/exchange.h"
#include "server/rpc/parameter_service.h"
#include "server/rpc/process_identity.h"
#include "server/store/store.h"

namespace lodestone::server {

class ServerProcess::Impl {
 public:
  Impl(const v1::Config& config, std::function<void(absl::Status)> on_ready, std::unique_ptr<Security> security);
  ~Impl() { Shutdown(0); }

  // Binds and starts everything. Call once.
  absl::Status Start();
  const std::string& address() const { return identity_.address; }
  absl::Status WaitUntilReady();
  void Shutdown(int64_t grace_ms);

 private:
  AdminService::Handlers AdminHandlers();
  void StartReplication();
  absl::Status Listen();
  std::unique_ptr<CoordinatorChannel> ConnectCoordinator();
  void StartMember();
  void OnRoute(absl::StatusOr<ShardMap> map);
  // Brings the shards back and serves them.
  absl::Status Begin(const ShardMap& map);
  void SetReady(absl::Status status);
  void CheckDisk();
  void SetServing(bool serving);
  void OnCoordinator(bool serves);
  void Tell(absl::string_view kind, absl::string_view text) { events_.Add(kind, name_, text); }
  void RunTicks();
  std::shared_ptr<Member> MemberNow() const;

  // process_status.cc.
  absl::Status StartHttp();
  absl::Status Readiness() const;
  void FillStatus(v1::StatusResponse* status) const;
  // Of the cluster where this ps serves the coordinator; otherwise of this ps.
  v1::EventsResponse Events(uint64_t after_id) const;
  v1::HistoryResponse History() const { return coordinator_.TellHistory().value_or(v1::HistoryResponse()); }
  v1::ServerProgress Progress() const;

  // Constant after Start.
  const v1::Config config_;
  const std::string name_;  // "ps 1".
  const std::function<void(absl::Status)> on_ready_;

  mutable Mutex mu_;
  CondVar changed_;
  std::string local_socket_;  // Its name; empty if there is none. Constant after Listen.
  ProcessIdentity identity_;  // Constant after Start; until then, calls that come already see it under mu_.
  std::optional<absl::Status> ready_ ABSL_GUARDED_BY(mu_);
  bool serving_ ABSL_GUARDED_BY(mu_) = false;  // What the health service says of the ps as a whole.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  // Synchronise themselves. Each uses only what stands above it; what gRPC calls outlives the gRPC server.
  AnchoredTime time_;
  const std::unique_ptr<Security> security_;
  EventLog events_;
  RefusedPushes refused_;
  Store store_;
  std::unique_ptr<Storage> storage_;  // Null if nothing is kept on disk; constant after Start.
  Broadcaster broadcaster_;
  std::optional<Replication> replication_;  // Where shards have followers.
  CoordinatorHost coordinator_;
  Exchange exchange_;
  ParameterService parameters_;
  AdminService admin_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<HttpServer> http_;  // Null if it has no HTTP port. Its handlers use all of the above.
  std::shared_ptr<Member> member_ ABSL_GUARDED_BY(mu_);  // Null before StartMember.
  std::atomic<const Member*> lease_of_{nullptr};         // The same, for who asks often.
  std::thread ticks_;
  std::thread begin_;       // Runs Begin. Started by the member's thread; joined when that has ended.
  bool disk_told_ = false;  // Owned by ticks_: that updates cannot be made durable.
};

}  // namespace lodestone::server
