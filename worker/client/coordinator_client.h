// This worker's place in the cluster: joins the coordinator, keeps the lease by heartbeats, follows the shard map,
// waits for others' clocks.
//
// While the coordinator is away the worker goes on: heartbeats are tried until one is answered, for as long as the
// worker lives. Only the coordinator's word that the lease is lost ends that.
//
// Thread-safe.
//
// The destructor tells the coordinator that the worker leaves, and ends the thread that sends heartbeats.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "common/rpc/coordinator_channel.h"
#include "common/security/credentials.h"
#include "common/wire/shard_map.h"
#include "grpcpp/client_context.h"
#include "proto/config.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/coordinator.pb.h"

namespace lodestone::worker {

class WorkerMembership {
 public:
  struct Events {
    // Called at most once, when the coordinator no longer counts this worker among the living.
    std::function<void(const absl::Status&)> on_lost;
    // What the process waits for, empty if nothing; heartbeats carry it unless progress says so itself.
    std::function<std::string()> waiting_for;
    // Called with every map that is newer than the one before, from the thread that sends heartbeats, which waits.
    std::function<void(const std::shared_ptr<const ShardMap>&)> on_route;
  };
  // Joins within coordinator.join_timeout_ms, then waits, within what is left of it, until all owners of shards are
  // there.
  // Logs what it waits for, at most once a second. The errors are the coordinator's, or DEADLINE_EXCEEDED with its last
  // word.
  static absl::StatusOr<std::unique_ptr<WorkerMembership>> Join(const v1::Config& config, Events events,
                                                                CredentialsRef credentials = nullptr);
  ~WorkerMembership();
  WorkerMembership(const WorkerMembership&) = delete;
  WorkerMembership& operator=(const WorkerMembership&) = delete;

  uint32_t index() const { return joined_.index(); }
  Incarnation incarnation() const { return joined_.incarnation(); }
  // The newest.
  std::shared_ptr<const ShardMap> shard_map() const;
  // Lets a newer one be asked for soon, without waiting for the next heartbeat.
  void AskRoute();

  // What the next heartbeats report. A change of phase is reported at once.
  void ReportProgress(const v1::WorkerProgress& progress);
  // As Client::AwaitClock.
  absl::Status AwaitClock(Clock clock);

 private:
  WorkerMembership(const v1::Config& config, Events events, CredentialsRef credentials);

  // Makes a call of the coordinator.
  using CoordinatorCall = std::function<grpc::Status(v1::Coordinator::Stub*, grpc::ClientContext*)>;
  absl::Status Call(grpc::ClientContext* context, const CoordinatorCall& call);
  // Calls `attempt(timeout_ms)` until it succeeds, fails with what `may_pass` denies, or the deadline has passed.
  // `what` is for messages.
  absl::Status TryUntil(int64_t deadline_ms, const std::string& what,
                        const std::function<absl::Status(int64_t timeout_ms)>& attempt,
                        const std::function<bool(const absl::Status&)>& may_pass);
  absl::Status JoinUntil(int64_t deadline_ms);
  absl::Status FetchRouteUntil(int64_t deadline_ms);
  void SendHeartbeats();
  // Waits until the next heartbeat is due at `due`, trying to reach a coordinator that is `away`; false if it ends.
  bool PauseUntil(std::chrono::steady_clock::time_point due, bool away);
  // Makes a call of that thread's, which the destructor cancels, with a deadline that leaves time for others before the
  // lease ends.
  absl::Status CallFromThread(const CoordinatorCall& call);
  v1::HeartbeatRequest NextHeartbeat(bool leaving);
  absl::StatusOr<v1::HeartbeatResponse> SendHeartbeat();
  void Leave();
  // Takes over the map of `epoch` if it is newer. FAILED_PRECONDITION if it is of a cluster of another shape.
  absl::Status FollowRoute(uint64_t epoch);
  absl::StatusOr<v1::AwaitClockResponse> AskForClock(Clock clock);
  void Lose(const absl::Status& status);

  // Constant after Join.
  const v1::Config config_;
  const Events events_;
  const std::string coordinator_name_;  // "coordinator at host:port"; with etcd "coordinator".
  v1::JoinResponse joined_;

  // Synchronise themselves.
  CoordinatorChannel coordinator_;

  mutable Mutex mu_;
  CondVar changed_;
  std::shared_ptr<const ShardMap> shard_map_ ABSL_GUARDED_BY(mu_);  // Null before FetchRouteUntil.
  v1::WorkerProgress progress_ ABSL_GUARDED_BY(mu_);
  std::string awaits_ ABSL_GUARDED_BY(mu_);  // What AwaitClock waits for.
  bool report_now_ ABSL_GUARDED_BY(mu_) = false;
  bool ask_route_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
  grpc::ClientContext* under_way_ ABSL_GUARDED_BY(mu_) = nullptr;  // Of CallFromThread.

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone::worker
