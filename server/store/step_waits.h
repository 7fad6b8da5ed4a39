// The pulls that wait for steps of tables whose consistency is sync (PullRequest.steps_min). None holds a thread; each
// ends when its shard may have the steps, after limits::kStepWaitMaxMs, when the shard is given up, or with the ps.
//
// Thread-safe. Ownership: all pointers must outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "server/store/on_demand_timer.h"

namespace lodestone::server {

class Shard;
class StepCollector;
class Table;

class StepWaits {
 public:
  StepWaits(const TimeSource* time, OnDemandTimer* timer) : time_(time), timer_(timer) {}

  // Calls `done` once, on any thread, perhaps within this call: with OK when the table may have `steps` steps on the
  // shard, or has none any more, so that it is to be looked at again; UNAVAILABLE, saying what is missing, after the
  // limit, and when the ps ends; ABORTED when the shard is given up. On the shard's executor; `collector` is the
  // table's there, and has fewer steps.
  using Done = std::function<void(const absl::Status&)>;
  void Await(ShardId shard, const Table& table, uint64_t steps, const StepCollector& collector, Done done);

  // What is collected on the shard has changed. On its executor. Cheap if nothing waits.
  void Tell(const Shard& shard);
  // The shard is given up. On its executor.
  void Lose(ShardId shard);
  // Ends all waits with an error.
  void Fail(const absl::Status& status);
  // The same, and for all that come later: the ps ends.
  void Stop();

  // Adds to the waits: those for the same batches of a step of a table together.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  struct Wait {
    ShardId shard = 0;
    TableId table = 0;
    std::string name;  // The table's.
    uint64_t steps = 0;
    int64_t since_ms = 0;
    uint64_t collected = 0;         // The step that is collected,
    std::string progress;           // what is there of it,
    std::vector<uint32_t> missing;  // and the batches that are not.
    Timer::Id limit = 0;
    Done done;
  };
  using Id = uint64_t;

  static std::string TextOf(const Wait& wait);
  static void NoteProgress(const StepCollector& collector, Wait* wait);
  void Expire(Id id);
  // Takes those off for which `ends` says so, and runs them with `status`.
  void End(const std::function<bool(Wait*)>& ends, const absl::Status& status);

  const TimeSource* const time_;
  OnDemandTimer* const timer_;

  std::atomic<size_t> count_{0};  // Of waits_.
  mutable Mutex mu_;
  std::map<Id, Wait> waits_ ABSL_GUARDED_BY(mu_);
  Id last_id_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::server
