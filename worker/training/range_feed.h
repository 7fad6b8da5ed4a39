// The batches of the ranges that the coordinator leases to this worker, one after another, and the report of how far it
// has come with them. A thread of its own leases a range while the one before is trained, so that no step waits for
// that.
//
// With RangePlan.step_batches what is leased are single batches of synchronous steps. That one is done is reported at
// once, because the next step begins when all are; while a worker waits for that, it asks again after a sixteenth of
// the time that it has waited.
//
// When the coordinator has workers pause, because the order of steps is to change, Next ends as it does after the last
// batch; a feed of its own goes on from there.
//
// Thread-safe. Next belongs to one thread, Finish, Evaluated and AwaitEndOfPause to another; Acknowledged is called by
// any.
//
// The client and the batches must outlive it, and so must it what calls Acknowledged.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <optional>
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
#include "worker/data/step_batches.h"
#include "worker/training/batch_pipeline.h"

namespace lodestone::worker {

class Client;
class EpochBatches;

// What a run with these settings trains on: the same for all of its workers. `samples`: of the training data; `sync`:
// how the tables' steps are made, if they are synchronous.
v1::RangePlan PlanOf(const v1::Config& config, uint64_t samples, EpochBatches* batches,
                     const std::optional<v1::Consistency::Sync>& sync = std::nullopt);

class RangeFeed {
 public:
  struct Options {
    v1::RangePlan plan;
    int64_t retry_timeout_ms = 60'000;  // How long a coordinator that does not answer is asked again.
    const TimeSource* time = nullptr;   // Must outlive it.
    uint64_t steps = 0;                 // With plan.step_batches: that the tables have on all shards.
    uint64_t orders = 0;                // LeaseRangesRequest.orders.
    // Asked now and then while Next waits, which then ends; empty: it waits until Stop. Any thread may call it.
    std::function<bool()> stops;
  };
  RangeFeed(Client* client, EpochBatches* batches, Options options);
  // Waits for the call under way, if there is one.
  ~RangeFeed();

  // The next batch, and the step that it is of. Waits for a range while others have all that are left: they may die.
  // False when all are done, when it is to pause, after Stop, or if it had to wait when `stops` said so. Errors: the
  // coordinator's; that it has not answered for so long.
  absl::StatusOr<bool> Next(BatchPipeline::Assignment* next);
  // All shards have applied the step of this range.
  void Acknowledged(Incarnation range, Sequence sequence);
  // Ends Next, now and from now on.
  void Stop();

  // Next has ended because the worker is to pause.
  bool paused() const;
  // Gives back what it has not trained, and waits until the worker may go on; returns Options.orders of the feed that
  // it goes on with, if it asks the servers only now what the order of steps is. Nullopt: there is nothing left to
  // train (complete()), or `stops` said so, which is asked now and then. REQUIRES: no push is unacknowledged, and Next
  // is not called any more.
  absl::StatusOr<std::optional<uint64_t>> AwaitEndOfPause(const std::function<bool()>& stops);

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

  // With plan.step_batches: the tables have so many steps on all shards, as far as the worker has seen.
  void NoteSteps(uint64_t steps);
  // The steps of which all batches are done, as far as the coordinator has said, also one that knows of fewer since it
  // was started again; 0 if the order of steps may have changed since.
  uint64_t steps_done() const;
  // How long Next has waited for batches, in all.
  double waited_seconds() const;

 private:
  struct Held {
    v1::RangeLease lease;
    RangeSession session;
    uint32_t handed_out = 0;         // Batches, from the first on.
    uint32_t done = 0;               // Of those, acknowledged without a gap.
    std::vector<bool> acknowledged;  // By batch.
  };

  // What the worker does while it asks.
  enum class Does { kTrain, kPause, kEnd };

  bool HasSteps() const { return options_.plan.step_batches() > 0; }
  // The first range that has batches to hand out; null: none has.
  Held* CurrentLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether another range is to be leased: none waits for the current one's end.
  bool WantsRangeLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The coordinator wants to be asked, so that all workers pause at once.
  bool PauseIsAnnouncedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run();
  // No range is leased any more.
  void EndLeasing();
  // Reads the batch of a step. INTERNAL: the coordinator leases one that the run does not have.
  absl::Status ReadOfStep(const v1::RangeLease& lease, BatchPipeline::Assignment* next);
  v1::LeaseRangesRequest RequestLocked(Does does) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Asks the coordinator, again until it answers. Its answer's range is among held_ then. CANCELLED after Stop, if the
  // worker trains.
  absl::StatusOr<v1::LeaseRangesResponse> Ask(Does does, bool evaluated = false);
  // Takes over what the coordinator answered; `session`: of the range that it gave, if it did.
  void TakeLocked(const v1::LeaseRangesRequest& request, const v1::LeaseRangesResponse& response, RangeSession session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // How long it waits before it asks again for a range, of which there was none.
  int64_t PauseMsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for a while, or until something changes. False after Stop, if the worker trains.
  bool Pause(int64_t ms, Does does);

  // Constant after construction.
  Client* const client_;
  EpochBatches* const batches_;  // Used by Next.
  const Options options_;
  std::optional<StepBatches> step_batches_;  // With plan.step_batches: used by Next.

  mutable Mutex mu_;
  CondVar changed_;
  std::list<Held> held_ ABSL_GUARDED_BY(mu_);  // In the order in which they were leased.
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool pause_announced_ ABSL_GUARDED_BY(mu_) = false;  // By the last answer.
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  bool is_behind_ ABSL_GUARDED_BY(mu_) = false;  // The order of steps may have changed since it began.
  bool complete_ ABSL_GUARDED_BY(mu_) = false;
  bool over_ ABSL_GUARDED_BY(mu_) = false;  // Complete, or evaluated by another: there are no more ranges.
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  bool unreported_ ABSL_GUARDED_BY(mu_) = false;  // A batch is done that the coordinator has not been told of.
  uint64_t steps_ ABSL_GUARDED_BY(mu_);
  uint64_t steps_done_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t without_since_ns_ ABSL_GUARDED_BY(mu_) = 0;  // When there was first none to lease; 0: there was one.
  int64_t waited_ns_ ABSL_GUARDED_BY(mu_) = 0;

  std::thread leaser_;
};

}  // namespace lodestone::worker
