// A ps as a member of its cluster: joins the coordinator, waits for the shard map and follows it, renews the lease, and
// joins again when the lease was lost. While the coordinator is away the ps goes on serving, within its lease what has
// a follower; if it comes back with its state, it takes the next heartbeat as if nothing had been, otherwise the ps
// joins again.
//
// Thread-safe. One thread of its own makes all calls but ReportSync's, on connections that carry nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "common/rpc/coordinator_channel.h"
#include "common/wire/shard_map.h"
#include "grpcpp/client_context.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "server/monitoring/event_log.h"

namespace lodestone::server {

class Member {
 public:
  struct Options {
    uint32_t index = 0;
    std::string address;       // Where others reach this ps.
    std::string local_socket;  // Where those of its machine do; empty: nowhere else.
    std::string cluster;
    uint32_t shards = 1;
    uint32_t lease_ms = 10'000;  // The coordinator's word counts, once it is known.
    uint32_t join_timeout_ms = 60'000;
    uint32_t replicas = 1;     // Above 1 heartbeats come at least each second, so that failovers are heard of soon.
    uint64_t token = 0;        // Of every Join; 0: drawn.
    uint64_t predecessor = 0;  // The token of the life before in the same data folder; 0: unknown.
    // Runs on the member's thread with every map that is newer than the one before, after on_route's, and with the
    // newest after the ps has joined again. The lease is not renewed meanwhile: it must not take long. May be null.
    std::function<void(const ShardMap&)> on_change;
    // What heartbeats tell: how it goes, and what has happened here. Called and read on the member's thread; may be
    // null.
    std::function<v1::ServerProgress()> progress;
    const EventLog* events = nullptr;
  };
  // Starts joining. `on_route` runs once, on the member's thread: with the shard map, or with what kept it from coming
  // for join_timeout_ms (or for good). It does not run if Leave comes first.
  Member(Options options, std::unique_ptr<CoordinatorChannel> coordinator,
         std::function<void(absl::StatusOr<ShardMap>)> on_route);
  // No call of ReportSync may be under way.
  ~Member();

  // Stops, cuts short what is under way, and tells the coordinator so if it can be reached.
  void Leave();

  // As the coordinator gave it; 0: it has not, or it has told that the lease is lost.
  Incarnation incarnation() const { return incarnation_.load(std::memory_order_acquire); }

  // When, on SteadyTime's clock, the lease ends if nothing more is heard: it began for the coordinator no earlier than
  // the newest Join or heartbeat that it answered was sent. 0 before the first.
  int64_t lease_ends_ms() const { return lease_ends_ms_.load(std::memory_order_acquire); }

  // Coordinator.ReportSync, in the name of this incarnation. Blocks, no longer than a heartbeat; several callers' go
  // one after the other. What an error leaves open: the coordinator may have got the report, or get it yet, but not
  // after a later one. UNAVAILABLE: not joined at present; CANCELLED after Leave.
  absl::StatusOr<v1::ReportSyncResponse> ReportSync(const v1::ReportSyncRequest& request);

  // Asks for the map now: somebody says that there is a newer one.
  void AskRoute();

  // Adds to the waits what keeps this ps from serving, or from its lease.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  void Run();
  // Until there is a map, the time is up, Leave is called or an error is final.
  absl::StatusOr<ShardMap> AwaitRoute();
  // One step towards the map.
  absl::StatusOr<ShardMap> TryRoute();
  absl::StatusOr<ShardMap> FetchRoute();
  // Renews the lease and follows the map, until Leave.
  void KeepLease();
  absl::Status RenewLease();
  absl::Status FollowRoute();
  // Until the next heartbeat or question for the map is due.
  int64_t PauseMs() const;
  void TakeWishes();

  absl::Status Join();
  absl::Status Heartbeat(bool leaving);
  // The id of the last event in it, or of the last one told.
  uint64_t FillHeartbeat(bool leaving, v1::HeartbeatRequest* request) const;
  // Whether an error of Join or Route may pass by itself.
  bool MayPass(const absl::Status& status);
  void NoteLease(int64_t ends_ms);
  int64_t HeartbeatPeriodMs() const;
  int64_t HeartbeatTimeoutMs() const;
  // Makes a call that Leave can cut short; its error names the coordinator.
  absl::Status Call(int64_t timeout_ms,
                    const std::function<grpc::Status(v1::Coordinator::Stub*, grpc::ClientContext*)>& call);
  // Sleeps, after trying to reach a coordinator that could not be reached, no longer than until somebody wishes
  // something; false if Leave was called.
  bool Pause(int64_t ms);
  bool leaving() const;
  // Notes what is waited for, empty for nothing; logs it when it is new, and every 10 s.
  void SetWait(const std::string& what);

  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // Constant after construction.
  const Options options_;
  const SteadyTime time_;
  const std::unique_ptr<CoordinatorChannel> coordinator_;
  const std::function<void(absl::StatusOr<ShardMap>)> on_route_;
  const uint64_t token_;  // Of every Join.

  // Written by the member's thread.
  std::atomic<Incarnation> incarnation_{0};
  std::atomic<int64_t> lease_ms_;
  std::atomic<int64_t> lease_ends_ms_{0};
  std::atomic<uint64_t> epoch_{0};  // Of the newest map; 0 before on_route's.

  // Owned by the member's thread; after it has ended, by Leave.
  bool joined_again_ = false;  // And on_change has not returned since.
  uint64_t told_event_ = 0;    // The id of the newest event that a heartbeat which was answered has told.
  int64_t lease_end_known_ms_ = 0;
  int64_t next_heartbeat_ms_ = 0;
  int64_t next_route_ms_ = kNever;  // When to ask for the map.
  int64_t route_asked_ms_ = 0;
  int64_t held_since_ms_ = 0;  // The coordinator first said that the place is held; 0: it has not.
  int64_t wait_logged_ms_ = 0;
  int64_t reconnected_ms_ = 0;

  Mutex report_mu_;  // Taken before mu_.
  uint64_t reports_ ABSL_GUARDED_BY(report_mu_) = 0;

  mutable Mutex mu_;
  CondVar changed_;
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;
  bool route_wished_ ABSL_GUARDED_BY(mu_) = false;
  bool heartbeat_wished_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);  // Under way.
  std::string wait_ ABSL_GUARDED_BY(mu_);
  int64_t wait_since_ms_ ABSL_GUARDED_BY(mu_) = 0;

  std::thread thread_;
};

}  // namespace lodestone::server
