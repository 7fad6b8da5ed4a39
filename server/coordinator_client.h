// A ps as a member of its cluster: the lease of a server, what its heartbeats report, and its reports of followers in
// sync. While the coordinator is away the ps goes on serving; with replicas, what has a follower only within its lease.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "common/rpc/coordinator_channel.h"
#include "common/rpc/lease_client.h"
#include "common/wire/shard_map.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"
#include "server/monitoring/event_log.h"

namespace lodestone::server {

class CoordinatorClient {
 public:
  struct Options {
    uint32_t index = 0;
    std::string address;       // Where others reach this ps.
    std::string local_socket;  // Where those of its machine do; empty: nowhere else.
    std::string zone;          // server.zone.
    std::string cluster;
    uint32_t shards = 1;
    uint32_t servers = 1;
    uint32_t lease_ms = 10'000;  // Until the coordinator gives another.
    uint32_t join_timeout_ms = 60'000;
    uint32_t replicas = 1;     // Above 1 heartbeats come at least each second, so that failovers are heard of soon.
    uint64_t token = 0;        // Of every Join; 0: drawn.
    uint64_t predecessor = 0;  // The token of the life before in the same data folder; 0: unknown.
    std::optional<v1::ServerData> data;    // What this ps begins with.
    std::function<bool()> shared;          // Whether ServerData.shared is true by now. Null: it is as in `data`.
    std::function<uint64_t()> generation;  // HeartbeatRequest.generation. Null: 0.
    // Runs on the member's thread with every map that is newer than the one before, after on_route's, and with the
    // newest after the ps has joined again. The lease is not renewed meanwhile: it must not take long. May be null.
    std::function<void(const ShardMap&)> on_change;
    // What heartbeats report: progress, and what has happened here. Called and read on the member's thread; may be
    // null.
    std::function<v1::ServerProgress()> progress;
    const EventLog* events = nullptr;
    // The whole copies that this ps holds of shards that it does not own, for a coordinator that wants to know. As
    // `progress`; may be null.
    std::function<std::vector<v1::ShardCopy>()> copies;
    // Runs on the member's thread when the ps has joined; may be null.
    std::function<void(const v1::JoinResponse&)> on_joined;
    // Runs on the member's thread with every answer to a heartbeat; may be null.
    std::function<void(const v1::HeartbeatResponse&)> on_heartbeat;
    // Runs on the member's thread with workers that have left or died. Must not take long; may be null.
    std::function<void(std::span<const Incarnation>)> on_workers_ended;
    // The same with the ranges that are open, and the workers that live, with every answer to a heartbeat while there
    // are any.
    std::function<void(std::span<const Incarnation>)> on_ranges_open;
  };
  // Starts joining. `on_route` runs once, on the member's thread: with the shard map, or with what kept it from coming
  // for join_timeout_ms, or is final. It does not run if Leave comes first.
  CoordinatorClient(Options options, std::unique_ptr<CoordinatorChannel> coordinator,
                    std::function<void(absl::StatusOr<ShardMap>)> on_route);
  // Leaves. No call of ReportSync may be in progress.
  ~CoordinatorClient() = default;

  // As LeaseClient's.
  void Leave() { lease_.Leave(); }
  Incarnation incarnation() const { return lease_.incarnation(); }
  int64_t lease_ends_ms() const { return lease_.lease_ends_ms(); }
  bool displaced() const { return lease_.displaced(); }
  void AskRoute() { lease_.RequestRoute(); }
  void AskHeartbeat() { lease_.RequestHeartbeat(); }

  // Coordinator.ReportSync, in the name of this incarnation. Blocks, no longer than a heartbeat; several callers' go
  // one after the other. What an error leaves open: the coordinator may have got the report, or get it yet, but not
  // after a later one. UNAVAILABLE: not joined at present; CANCELLED after Leave.
  absl::StatusOr<v1::ReportSyncResponse> ReportSync(const v1::ReportSyncRequest& request);

  // Adds to the waits what keeps this ps from serving, or from its lease.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  LeaseClient::Options LeaseOptions(bool coordinator_is_fixed) const;
  void FillHeartbeat(v1::HeartbeatRequest* request);
  void OnHeartbeatAnswered(const v1::HeartbeatResponse& response);
  absl::Status CheckRoute(const ShardMap& map) const;

  // Constant after construction.
  const Options options_;

  // Owned by the lease's thread; after it has ended, by Leave.
  uint64_t reported_event_ = 0;    // The id of the newest event in a heartbeat that was answered.
  uint64_t filled_event_ = 0;      // The same of the newest heartbeat.
  uint64_t workers_ended_to_ = 0;  // As it was answered last.
  bool wants_copies_ = false;      // The coordinator does.

  Mutex report_mu_;
  uint64_t reports_ ABSL_GUARDED_BY(report_mu_) = 0;

  LeaseClient lease_;  // Last: its thread uses all of the above. Synchronises itself.
};

}  // namespace lodestone::server
