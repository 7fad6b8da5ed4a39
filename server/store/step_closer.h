// The updates that apply a step of a table without a push: it has all of its batches and a pull asks for the next one,
// or it has its quorum and the time for the rest is over (Consistency.Sync.grace_ms). They are logged and replicated as
// any.
//
// Thread-safe as each method says. Ownership: all pointers must outlive the executors.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "server/store/on_demand_timer.h"

namespace lodestone::server {

class Catalog;
class CommitLog;
class ServingGate;
class Shard;
class ShardSet;
class StepWaits;
struct AppliedStep;

class StepCloser {
 public:
  StepCloser(const TimeSource* time, OnDemandTimer* timer, const ServingGate* gate, ShardSet* shards, CommitLog* log,
             const Catalog* catalog, StepWaits* waits);

  // `listener` is called with each step that ends here, on the shard's executor. Call once, before the first push.
  using Listener = std::function<void(const AppliedStep&)>;
  void SetListener(Listener listener) { listener_ = std::move(listener); }

  // A shard has taken a contribution. On its executor.
  void Contributed(const Shard& shard);
  // Applies the steps below `steps` that a table has all batches of. On the executor of the shard. The log's error if
  // it cannot be written now; not for a shard that this ps does not answer for yet (`served`), whose updates the log
  // keeps until it can.
  absl::Status Release(Shard* shard, TableId table, uint64_t steps, bool served = true);

  // The end of a table's steps: applies the contributions that wait, without a quorum. Threads and errors as Release's.
  absl::Status EndSteps(Shard* shard, TableId table, bool served = true);

  // About once a second: applies what is due where no timer was set, because the shard came from a log or another ps,
  // or the log could not be written then.
  void Tick();
  // No step is applied any more.
  void Stop() { stopped_.store(true); }

 private:
  // `ends_steps`: ClosedStep.ends_steps.
  void Close(Shard* shard, TableId table, uint64_t now_ms, bool ends_steps = false);
  // On the shard's executor: applies what is due, and sees to what will be.
  void CloseDue(ShardId shard);
  void Schedule(const Shard& shard);
  absl::Status CheckWritable() const;

  const TimeSource* const time_;
  OnDemandTimer* const timer_;
  const ServingGate* const gate_;
  ShardSet* const shards_;
  CommitLog* const log_;
  const Catalog* const catalog_;
  StepWaits* const waits_;
  Listener listener_;
  std::atomic<bool> stopped_{false};
  std::vector<uint64_t> scheduled_ms_;  // By shard, of its executor: when a timer will look at it; 0: none is set.
};

}  // namespace lodestone::server
