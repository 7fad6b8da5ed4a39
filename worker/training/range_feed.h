// The batches of the ranges that the coordinator leases to this worker, one after another, and the report of how far it
// has come with them. A thread of its own leases a range while the one before is trained, so that no step waits for
// that.
//
// Thread-safe. Next belongs to one thread, Finish and Evaluated to another; Acknowledged is called by any.
//
// The client and the batches must outlive it, and so must it what calls Acknowledged.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "proto/config.pb.h"
#include "proto/coordinator.pb.h"
#include "worker/client/types.h"
#include "worker/training/batch_pipeline.h"

namespace lodestone::worker {

class Client;
class EpochBatches;

// What a run with these settings trains on: the same for all of its workers. `samples`: of the training data.
v1::RangePlan PlanOf(const v1::Config& config, uint64_t samples, const EpochBatches& batches);

class RangeFeed {
 public:
  struct Options {
    v1::RangePlan plan;
    int64_t retry_timeout_ms = 60'000;  // How long a coordinator that does not answer is asked again.
    const TimeSource* time = nullptr;   // Must outlive it.
    // Asked now and then while Next waits, which then ends; empty: it waits until Stop. Any thread may call it.
    std::function<bool()> stops;
  };
  RangeFeed(Client* client, EpochBatches* batches, Options options);
  // Waits for the call under way, if there is one.
  ~RangeFeed();

  // The next batch, and the step that it is of. Waits for a range while others have all that are left: they may die.
  // False when all are done, after Stop, or if it had to wait when `stops` said so. Errors: the coordinator's; that it
  // has not answered for so long.
  absl::StatusOr<bool> Next(BatchPipeline::Assignment* next);
  // All shards have applied the step of this range.
  void Acknowledged(Incarnation range, Sequence sequence);
  // Ends Next, now and from now on.
  void Stop();

  // How the run ends for this worker.
  enum class Ending {
    kEvaluate,  // It is to evaluate, and then to call Evaluated.
    kOver,      // Another worker has.
    kStopped,   // `stops` said so.
  };
  // Gives back what it has not trained, and waits until no worker takes a further step and this one is to evaluate, or
  // another has. `stops` is asked now and then. Call once. REQUIRES: no push is unacknowledged, and Next is not called
  // any more.
  absl::StatusOr<Ending> Finish(const std::function<bool()>& stops);
  // The model was evaluated.
  absl::Status Evaluated();
  // All batches of the run are done, as far as the coordinator has said. After Finish.
  bool complete() const;

 private:
  struct Held {
    v1::RangeLease lease;
    RangeSession session;
    uint32_t handed_out = 0;         // Batches, from the first on.
    uint32_t done = 0;               // Of those, acknowledged without a gap.
    std::vector<bool> acknowledged;  // By batch.
  };

  // The first range that has batches to hand out; null: none has.
  Held* CurrentLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether another range is to be leased: none waits for the current one's end.
  bool WantsRangeLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run();
  v1::LeaseRangesRequest RequestLocked(bool finished) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asks the coordinator, again until it answers. Its answer's range is among held_ then. CANCELLED after Stop, unless
  // it has `finished`.
  absl::StatusOr<v1::LeaseRangesResponse> Ask(bool finished, bool evaluated = false);
  // Takes over what the coordinator answered; `session`: of the range that it gave, if it did.
  void TakeLocked(const v1::LeaseRangesRequest& request, const v1::LeaseRangesResponse& response, RangeSession session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for a while, or until something changes. False after Stop, unless it has `finished`.
  bool Pause(int64_t ms, bool finished);

  // Constant after construction.
  Client* const client_;
  EpochBatches* const batches_;  // Used by Next.
  const Options options_;

  mutable Mutex mu_;
  CondVar changed_;
  std::list<Held> held_ ABSL_GUARDED_BY(mu_);  // In the order in which they were leased.
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool complete_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // Complete, or evaluated by another: there are no more ranges.
  absl::Status error_ ABSL_GUARDED_BY(mu_);

  std::thread leaser_;
};

}  // namespace lodestone::worker
