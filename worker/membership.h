// This worker's place in the cluster: joins the coordinator, keeps the lease by heartbeats, waits for others' clocks.
//
// Thread-safe.
//
// The destructor tells the coordinator that the worker leaves, and ends the thread that sends heartbeats.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/shard_map.h"
#include "common/types.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/config.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/coordinator.pb.h"

namespace lodestone {

class WorkerMembership {
 public:
  struct Events {
    // Called at most once, when the coordinator no longer counts this worker among the living.
    std::function<void(const absl::Status&)> on_lost;
    // What the process waits for, empty if nothing; heartbeats carry it unless progress says so itself.
    std::function<std::string()> waiting_for;
  };
  // Joins within coordinator.join_timeout_ms, then waits, within what is left of it, until all servers have joined.
  // Logs what it waits for, at most once a second. The errors are the coordinator's, or DEADLINE_EXCEEDED with its last
  // word.
  static absl::StatusOr<std::unique_ptr<WorkerMembership>> Join(const v1::Config& config, Events events);
  ~WorkerMembership();
  WorkerMembership(const WorkerMembership&) = delete;
  WorkerMembership& operator=(const WorkerMembership&) = delete;

  uint32_t index() const { return joined_.index(); }
  Incarnation incarnation() const { return joined_.incarnation(); }
  const ShardMap& shard_map() const { return *shard_map_; }

  // What the next heartbeats report. A change of phase is reported at once.
  void ReportProgress(const v1::WorkerProgress& progress);
  // As Client::AwaitClock.
  absl::Status AwaitClock(Clock clock);

 private:
  WorkerMembership(const v1::Config& config, Events events);

  // Calls `attempt(timeout_ms)` until it succeeds, fails with what `may_pass` denies, or the deadline has passed.
  // `what` is for messages.
  absl::Status TryUntil(int64_t deadline_ms, const std::string& what,
                        const std::function<absl::Status(int64_t timeout_ms)>& attempt,
                        const std::function<bool(const absl::Status&)>& may_pass);
  absl::Status JoinUntil(int64_t deadline_ms);
  absl::Status FetchRouteUntil(int64_t deadline_ms);
  void SendHeartbeats();
  absl::Status SendHeartbeat(bool leaving);
  absl::StatusOr<v1::AwaitClockResponse> AskForClock(Clock clock);
  void Lose(const absl::Status& status);

  // Constant after Join.
  const v1::Config config_;
  const Events events_;
  const std::string coordinator_;  // "coordinator at host:port".
  v1::JoinResponse joined_;
  std::optional<ShardMap> shard_map_;

  // Synchronise themselves.
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Coordinator::Stub> stub_;

  Mutex mu_;
  CondVar changed_;
  v1::WorkerProgress progress_ ABSL_GUARDED_BY(mu_);
  std::string awaits_ ABSL_GUARDED_BY(mu_);  // What AwaitClock waits for.
  bool report_now_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
  grpc::ClientContext* heartbeat_ ABSL_GUARDED_BY(mu_) = nullptr;  // The call under way.

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone
