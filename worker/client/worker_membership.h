// A worker as a member of its cluster: the lease of a worker, what its heartbeats report, the newest shard map, and the
// clocks of the other workers.
//
// While the coordinator is away the worker goes on: heartbeats are sent until one is answered, for as long as the
// worker lives. Only the coordinator's word that the lease is lost ends that.
//
// Thread-safe.
//
// The destructor reports to the coordinator that the worker leaves.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "common/rpc/lease_client.h"
#include "common/security/credentials.h"
#include "common/wire/shard_map.h"
#include "proto/config.pb.h"
#include "proto/coordinator.pb.h"

namespace lodestone::worker {

class WorkerMembership {
 public:
  struct Events {
    // Called at most once, when the coordinator no longer counts this worker among the living.
    std::function<void(const absl::Status&)> on_lost;
    // What the process waits for, the longest first; heartbeats carry it.
    std::function<std::vector<v1::WaitStatus>()> waits;
    // Called with every map that is newer than the one before, from the thread that sends heartbeats, which waits.
    std::function<void(const std::shared_ptr<const ShardMap>&)> on_route;
  };
  // Joins within coordinator.join_timeout_ms, then waits, within what is left of it, until all owners of shards are
  // there.
  // Logs what it waits for, at most once a second. The errors are the coordinator's, or DEADLINE_EXCEEDED with its last
  // word.
  static absl::StatusOr<std::unique_ptr<WorkerMembership>> Join(const v1::Config& config, Events events,
                                                                CredentialsRef credentials = nullptr);
  ~WorkerMembership() = default;
  WorkerMembership(const WorkerMembership&) = delete;
  WorkerMembership& operator=(const WorkerMembership&) = delete;

  uint32_t index() const { return lease_->index(); }
  Incarnation incarnation() const { return lease_->incarnation(); }
  // The newest.
  std::shared_ptr<const ShardMap> shard_map() const;
  // Lets a newer one be fetched soon, without waiting for the next heartbeat.
  void AskRoute() { lease_->RequestRoute(); }

  // What the next heartbeats report. A change of phase is reported at once.
  void ReportProgress(const v1::WorkerProgress& progress);
  // As Client::AwaitClock.
  absl::StatusOr<std::vector<std::string>> AwaitClock(Clock clock, const std::function<bool()>& stops);
  // As Client::AskClock and Client::ReportClock.
  absl::StatusOr<v1::AwaitClockResponse> AskClock(v1::AwaitClockRequest request);
  void ReportClock(Clock clock);
  // As Client::Validate and Client::StopsEarly.
  absl::StatusOr<v1::ValidateResponse> Validate(v1::ValidateRequest request);
  // As Client::LeaseRanges.
  absl::StatusOr<v1::LeaseRangesResponse> LeaseRanges(v1::LeaseRangesRequest request);
  bool StopsEarly() const { return stops_early_.load(std::memory_order_relaxed); }
  // As Client::PauseAnnounced.
  bool PauseAnnounced() const { return pause_announced_.load(std::memory_order_relaxed); }

 private:
  WorkerMembership(const v1::Config& config, Events events);

  LeaseClient::Options LeaseOptions() const;
  LeaseClient::Delegate LeaseDelegate(std::function<void(absl::StatusOr<ShardMap>)> on_first_route);
  void FillHeartbeat(bool leaving, v1::HeartbeatRequest* request);
  // Adds `waits`, and what this object waits for, the first of which is in words waiting_for unless that is set.
  void AddWaits(std::vector<v1::WaitStatus> waits, v1::WorkerProgress* progress) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The first map must be of the configured shards, with all owners there; a later one of the shape of the first.
  absl::Status CheckRoute(const ShardMap& map) const;
  void SetRoute(const ShardMap& map);
  void Lose(const absl::Status& status);
  // Why training ends early; empty: it does not.
  void NoteStop(const std::string& why);

  // Constant after Join.
  const v1::Config config_;
  const Events events_;
  const SteadyTime time_;

  std::atomic<bool> stops_early_{false};
  std::atomic<bool> pause_announced_{false};

  mutable Mutex mu_;
  std::shared_ptr<const ShardMap> shard_map_ ABSL_GUARDED_BY(mu_);  // Null before the first.
  v1::WorkerProgress progress_ ABSL_GUARDED_BY(mu_);
  std::optional<Clock> clock_ ABSL_GUARDED_BY(mu_);  // As ReportClock was told last.
  std::string awaits_ ABSL_GUARDED_BY(mu_);          // What AwaitClock or LeaseRanges waits for.
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
  google::protobuf::RepeatedPtrField<v1::WaitTarget> awaits_targets_ ABSL_GUARDED_BY(mu_);  // Of awaits_.
  std::optional<int64_t> awaits_since_ms_ ABSL_GUARDED_BY(mu_);  // Since when heartbeats have told awaits_.

  std::unique_ptr<LeaseClient> lease_;  // Last: its thread uses all of the above. Synchronises itself.
};

}  // namespace lodestone::worker
