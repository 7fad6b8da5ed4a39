// The lease of a process in its cluster: joins the coordinator, waits for the shard map and follows it, and renews the
// lease by heartbeats. A server and a worker differ in Options and Delegate only.
//
// While the coordinator is away the process goes on: heartbeats are sent until one is answered. A coordinator that
// comes back with its state takes the next one as if nothing had been; otherwise the lease is lost, and the process
// joins again or ends (Options::joins_again).
//
// Thread-safe. One thread of its own makes all calls but those of Call. Delegate's functions run on that thread, but
// for the last heartbeat's, which run in Leave; while they run no lease is renewed, so they must not take long.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "common/rpc/coordinator_channel.h"
#include "common/rpc/lease_wait.h"
#include "common/rpc/life_socket.h"
#include "common/rpc/route_pace.h"
#include "common/wire/shard_map.h"
#include "grpcpp/client_context.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/coordinator.pb.h"

namespace lodestone {

class LeaseClient {
 public:
  struct Options {
    v1::JoinRequest join;        // The role and all that goes with it. Peer and token are set if they are not.
    uint32_t lease_ms = 10'000;  // Until the coordinator gives another.
    int64_t join_timeout_ms = 60'000;
    int64_t leave_timeout_ms = 500;
    int64_t poll_ms_max = 100;           // Between two attempts to join or to get the first map; they back off to it.
    int64_t heartbeat_ms_max = 1000;     // Between two heartbeats, also where a third of the lease is longer.
    int64_t route_request_ms_max = 100;  // The longest pause between two requests of the map (RoutePace).
    int64_t reconnect_ms = 0;            // Between two times that gRPC's own pauses are cut short; 0: they are not.
    bool joins_again = true;             // After the lease was lost.
    bool shows_life = false;             // By a LifeSocket, so that its death is noticed before its lease ends.
    std::string without_lease;           // What the process does while the lease cannot be renewed, for wait().
  };
  // What a process adds to the protocol. None may be null but fill_join, on_joined, and on_lost where
  // Options::joins_again.
  struct Delegate {
    std::function<void(bool leaving, v1::HeartbeatRequest*)> fill_heartbeat;
    // What a Join says that may have changed since the one before. Null: nothing.
    std::function<void(v1::JoinRequest*)> fill_join = nullptr;
    // The process has joined; its lease counts from then on. Null: nothing.
    std::function<void(const v1::JoinResponse&)> on_joined = nullptr;
    // The newest heartbeat that was filled has been answered.
    std::function<void(const v1::HeartbeatResponse&)> on_heartbeat_answered;
    // Whether a map is one for this process. Retryable errors are waited out; FAILED_PRECONDITION loses the lease of a
    // process that does not join again.
    std::function<absl::Status(const ShardMap&)> check_route;
    // Runs once, with the first map, or with what kept it from coming for join_timeout_ms, or is final. Does not run if
    // Leave comes first.
    std::function<void(absl::StatusOr<ShardMap>)> on_first_route;
    // Runs with every map that is newer than the one before, and with the newest after the process has joined again.
    std::function<void(const ShardMap&)> on_route;
    // The lease is lost; nothing more is sent.
    std::function<void(const absl::Status&)> on_lost;
  };
  using Wait = LeaseWait::Wait;

  // Starts joining.
  LeaseClient(Options options, Delegate delegate, std::unique_ptr<CoordinatorChannel> coordinator);
  // Leaves. No call of Call may be in progress.
  ~LeaseClient();
  LeaseClient(const LeaseClient&) = delete;
  LeaseClient& operator=(const LeaseClient&) = delete;

  // Stops, cancels calls in progress, and reports to the coordinator that the process leaves if it can be reached.
  void Leave();

  // As the coordinator gave them. incarnation is 0 before it has, and while a process that joins again has no lease.
  Incarnation incarnation() const { return incarnation_.load(std::memory_order_acquire); }
  uint32_t index() const { return index_.load(std::memory_order_acquire); }
  // Another process has taken the place of this one, which had lost its lease: what it holds is out of date, for ever.
  bool displaced() const { return displaced_.load(std::memory_order_acquire); }
  // The newest map's; 0 before the first.
  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  // When, on SteadyTime's clock, the lease ends if nothing more is heard: it began for the coordinator no earlier than
  // the newest Join or heartbeat that it answered was sent. 0 before the first.
  int64_t lease_ends_ms() const { return lease_ends_ms_.load(std::memory_order_acquire); }
  // How long a call may take that leaves time for others before the lease ends.
  int64_t call_timeout_ms() const;

  // Let the map be fetched, or a heartbeat be sent, at once; the map again and again for a while, until there is a
  // newer one. No effect before the first map.
  void RequestRoute();
  void RequestHeartbeat();

  // Makes a call of the coordinator that Leave can cancel; its error names the coordinator. CANCELLED after Leave.
  using CoordinatorCall = std::function<grpc::Status(v1::Coordinator::Stub*, grpc::ClientContext*)>;
  absl::Status Call(int64_t timeout_ms, const CoordinatorCall& call);

  // What keeps the process from its first map, or from its lease.
  std::optional<Wait> wait() const { return wait_.Get(); }
  // Where the coordinator was last; empty if it was nowhere yet.
  std::string coordinator_address() const;

 private:
  void Run();
  // Until there is a map, the time is up, Leave is called or an error is final.
  absl::StatusOr<ShardMap> AwaitRoute();
  // One step towards the first map.
  absl::StatusOr<ShardMap> TryRoute(int64_t left_ms);
  absl::StatusOr<ShardMap> FetchRoute(int64_t timeout_ms);
  // Renews the lease and follows the map, until Leave or the loss of the lease.
  void KeepLease();
  absl::Status RenewLease();
  absl::Status FollowRoute();
  // The pauses after a heartbeat, and a request of the map, that failed.
  int64_t NextRetryMs();
  int64_t RouteRetryMs() const;
  // Whether `status` means the end; then on_lost has run.
  bool IsLost(const absl::Status& status);
  // Until the next heartbeat or request of the map is due.
  int64_t PauseMs() const;
  void HandleRequests();

  absl::Status Join(int64_t timeout_ms);
  using LifeOr = absl::StatusOr<std::unique_ptr<LifeSocket>>;
  // Makes life_, if it can be made soon.
  void ShowLife();
  absl::Status Heartbeat();
  absl::Status LastHeartbeat();
  // Whether an error of Join or Route may pass by itself.
  bool MayPass(const absl::Status& status);
  void NoteLease(int64_t ends_ms);
  int64_t HeartbeatPeriodMs() const;
  // Sleeps, trying to reach a coordinator that cannot be reached, no longer than until there is a request or the
  // coordinator is reached; false if Leave was called.
  bool Pause(int64_t ms);
  // Null unless the coordinator cannot be reached and it is time to try.
  CoordinatorChannel::ConnectionPtr TryToReconnect();
  bool leaving() const;

  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  static constexpr int64_t kLongAgo = std::numeric_limits<int64_t>::min() / 2;

  // Constant after construction.
  const Options options_;
  const Delegate delegate_;
  const SteadyTime time_;
  const std::unique_ptr<CoordinatorChannel> coordinator_;
  const v1::JoinRequest join_;

  // Written by the thread.
  std::atomic<Incarnation> incarnation_{0};
  std::atomic<uint32_t> index_{0};
  std::atomic<int64_t> lease_ms_;
  std::atomic<int64_t> lease_ends_ms_{0};
  std::atomic<uint64_t> epoch_{0};
  std::atomic<bool> displaced_{false};

  // Owned by the thread; after it has ended, by Leave.
  Incarnation former_incarnation_ = 0;  // The newest that it had.
  bool is_lost_ = false;                // The lease is, and the process does not join again.
  bool joined_again_ = false;           // And on_route has not returned since.
  int64_t lease_end_known_ms_ = 0;
  int64_t next_heartbeat_ms_ = 0;
  int64_t next_route_ms_ = kNever;  // When to fetch the map.
  RoutePace route_pace_;
  int64_t route_requested_ms_ = kLongAgo;  // By RequestRoute, and no newer one since.
  bool route_failed_ = false;              // The newest attempt at a map.
  int64_t retry_ms_ = 0;                   // The last pause of NextRetryMs; 0: the coordinator has answered since.
  int64_t held_since_ms_ = 0;              // The coordinator first said that the place is held; 0: it has not.
  int64_t reconnected_ms_ = 0;
  std::unique_ptr<LifeSocket> life_;  // Null: it does not show it. Never another one: a coordinator may watch it.
  std::future<LifeOr> coming_life_;   // While it is made.

  mutable Mutex mu_;
  CondVar changed_;
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;
  bool route_requested_ ABSL_GUARDED_BY(mu_) = false;
  bool heartbeat_requested_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);  // In progress.
  LeaseWait wait_;                                                // Synchronises itself.

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone
