// The client of a cluster: joins it, finds each shard's server, pushes and pulls, subscribes.
//
// Thread-safe unless a method says otherwise. Push and Pull are asynchronous: they return when the request is queued
// and call back from one of the client's few threads. Callbacks must be quick and must not wait for other calls (as
// Push does while its window is full; a push counts there until its callback has returned). They may make calls: those
// made by the callbacks of one message's answers go out together, which is the cheapest way to keep several in flight.
//
// A call that fails for a transient reason (unreachable, overloaded, deadline) is retried with the same sequence until
// `worker.retry_timeout_ms` has passed. When a ps comes back at another address, or a shard gets another owner, the
// unanswered calls are sent there and subscriptions are renewed there.
//
// The client owns its channels and threads. Its destructor cancels what is in flight, waits for the callbacks, and
// leaves the cluster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/config.pb.h"
#include "proto/coordinator.pb.h"
#include "worker/client/cluster_reader.h"
#include "worker/client/types.h"

namespace lodestone::worker {

class Client : public ClusterReader {
 public:
  // Joins the coordinator at config.coordinator.address, waits for all servers that own something, and starts the
  // heartbeat. Logs what it waits for. `on_progress` (may be empty) is called by ReportProgress with its argument.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const v1::Config& config, std::function<void(const v1::WorkerProgress&)> on_progress = nullptr);

  virtual uint32_t index() const = 0;
  virtual Incarnation incarnation() const = 0;

  using PushResult = lodestone::worker::PushResult;
  // Sends gradients as the push of `step`. What is not borrowed is copied before Push returns. Blocks while
  // worker.pushes_in_flight_max pushes are unacknowledged. `read_versions` are those of the values that the gradients
  // were computed from. `done` runs once, when every server has acknowledged or finally failed; if Push
  // itself returns an error, nothing was sent and `done` does not run.
  virtual absl::Status Push(const StepOrigin& step, std::span<const DenseGradient> dense,
                            std::span<const RowGradients> rows, const ReadVersions& read_versions,
                            std::function<void(PushResult)> done) = 0;

  // Push, then Pull: the values read include the push. In one exchange with each server where possible, otherwise one
  // after the other. `done` runs once, when all dst are filled or either has failed; with the status of the push,
  // unless that is OK, then of the pull.
  virtual absl::Status PushPull(const StepOrigin& step, std::span<const DenseGradient> dense,
                                std::span<const RowGradients> rows, const ReadVersions& read_versions,
                                std::vector<DensePull> dense_pulls, std::vector<RowPull> row_pulls,
                                std::function<void(PushResult, ShardVersions)> done) = 0;

  // Tells all servers, and those whose session is opened later, that this worker follows so many changes of the order
  // of steps (LeaseRangesRequest.orders): no earlier pause changes it any more, so that it is what DescribeByServer
  // says after that. Blocks.
  virtual absl::Status FollowOrders(uint64_t orders) = 0;

  // From now on pushes wait while so many are unacknowledged, instead of worker.pushes_in_flight_max. REQUIRES: pushes
  // > 0.
  virtual void SetPushesInFlightMax(size_t pushes) = 0;

  // How often answers to pushes have told that settings of tables have changed, on any server; DescribeTables says what
  // they are. Cheap.
  virtual uint64_t SettingsChanges() const = 0;

  // Waits until no push is unacknowledged; the first error that a push ended with, if any. OUT_OF_RANGE, with which a
  // table's guard refuses a push, does not count: the cluster is healthy.
  virtual absl::Status Flush() = 0;

  // Sets what the next heartbeats report.
  virtual void ReportProgress(const v1::WorkerProgress& progress) = 0;
  // Waits until every other live worker's clock has reached `clock` (or it has finished); logs which it waits for.
  // Returns those that take no further step and have not trained all of their samples, a line each. CANCELLED once
  // `stops`, which is asked now and then, says so; empty: it never does.
  virtual absl::StatusOr<std::vector<std::string>> AwaitClock(Clock clock,
                                                              const std::function<bool()>& stops = nullptr) = 0;
  // As Coordinator.AwaitClock, in this worker's name; tried once. What it waits for is reported with the progress until
  // the next call.
  virtual absl::StatusOr<v1::AwaitClockResponse> AskClock(v1::AwaitClockRequest request) = 0;
  // From now on heartbeats report this clock, which never goes back, instead of the progress's; a heartbeat is sent
  // now.
  virtual void ReportClock(Clock clock) = 0;
  // As Coordinator.Validate, in this worker's name. A claim is tried once, and for a few seconds at most; a report
  // again and again, for longer.
  virtual absl::StatusOr<v1::ValidateResponse> Validate(v1::ValidateRequest request) = 0;
  // As Coordinator.LeaseRanges, in this worker's name; tried once, for a few seconds at most. What it waits for is
  // reported with the progress until the next call.
  virtual absl::StatusOr<v1::LeaseRangesResponse> LeaseRanges(v1::LeaseRangesRequest request) = 0;
  // Lets the servers know a range that steps are pushed of. Does not wait for that.
  virtual RangeSession OpenRange(Incarnation range) = 0;
  // Whether the coordinator has said that training ends early. Cheap.
  virtual bool StopsEarly() const = 0;
  // Whether it has said that workers are to pause soon (LeaseRangesResponse.pause_announced). Cheap.
  virtual bool PauseAnnounced() const = 0;
  // Has every ps write a checkpoint of this name, after it has removed its part of checkpoint `removes` (may be empty);
  // returns when all have. ABORTED if shards that moved meanwhile are in no part of it. Needs the role admin, where
  // there are roles.
  virtual absl::Status WriteCheckpoint(const std::string& name, const std::string& removes) = 0;
};

}  // namespace lodestone::worker
