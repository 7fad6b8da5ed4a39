// A ps as a member of its cluster: joins the coordinator, waits for the shard map, renews the lease, and joins again
// when the lease was lost. While the coordinator is away the ps goes on serving; if it comes back with its state, it
// takes the next heartbeat as if nothing had been, otherwise the ps joins again.
//
// Thread-safe. One thread of its own makes all calls, on a connection that carries nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/shard_map.h"
#include "common/time_source.h"
#include "common/types.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.grpc.pb.h"

namespace lodestone {

class Member {
 public:
  struct Options {
    std::string coordinator;  // For messages: where the channel leads.
    uint32_t index = 0;
    std::string address;  // Where others reach this ps.
    std::string cluster;
    uint32_t shards = 1;
    uint32_t lease_ms = 10'000;  // The coordinator's word counts, once it is known.
    uint32_t join_timeout_ms = 60'000;
    uint64_t token = 0;        // Of every Join; 0: drawn.
    uint64_t predecessor = 0;  // The token of the life before in the same data folder; 0: unknown.
  };
  // Starts joining. `on_route` runs once, on the member's thread: with the shard map, or with what kept it from coming
  // for join_timeout_ms (or for good). It does not run if Leave comes first.
  Member(Options options, std::shared_ptr<grpc::Channel> channel,
         std::function<void(absl::StatusOr<ShardMap>)> on_route);
  ~Member();

  // Stops, and tells the coordinator so if it can be reached.
  void Leave();

  // Adds to the waits what keeps this ps from serving, or from its lease.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  void Run();
  // Until there is a map, the time is up, Leave is called or an error is final.
  absl::StatusOr<ShardMap> AwaitRoute();
  // One step towards the map.
  absl::StatusOr<ShardMap> TryRoute();
  // Until Leave.
  void KeepLease();

  absl::Status Join();
  absl::Status Heartbeat(bool leaving);
  // Whether an error of Join or Route may pass by itself.
  bool MayPass(const absl::Status& status);
  // Makes a call that Leave can cut short; its error names the coordinator.
  absl::Status Call(int64_t timeout_ms, const std::function<grpc::Status(grpc::ClientContext*)>& call);
  // Sleeps, after trying to reach a coordinator that could not be reached; false if Leave was called.
  bool Pause(int64_t ms);
  bool leaving() const;
  // Notes what is waited for, empty for nothing; logs it when it is new, and every 10 s.
  void SetWait(const std::string& what);

  // Constant after construction.
  const Options options_;
  const SteadyTime time_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Coordinator::Stub> stub_;
  const std::function<void(absl::StatusOr<ShardMap>)> on_route_;
  const uint64_t token_;  // Of every Join.

  // Owned by the member's thread; after it has ended, by Leave.
  Incarnation incarnation_ = 0;
  bool has_route_ = false;
  int64_t lease_ms_;
  int64_t next_heartbeat_ms_ = 0;
  int64_t held_since_ms_ = 0;  // The coordinator first said that the place is held; 0: it has not.
  int64_t wait_logged_ms_ = 0;
  int64_t reconnected_ms_ = 0;

  mutable Mutex mu_;
  CondVar changed_;
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;  // The call under way.
  std::string wait_ ABSL_GUARDED_BY(mu_);
  int64_t wait_since_ms_ ABSL_GUARDED_BY(mu_) = 0;

  std::thread thread_;
};

}  // namespace lodestone
