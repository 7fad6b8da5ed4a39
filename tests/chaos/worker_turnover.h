// Workers that join, leave and die while a chaos run goes on, by a seed; and whether what they train is trained once in
// each epoch, whichever of them die. They train in runs of some epochs, one after the other. An operator changes the
// order of their steps meanwhile. When workers come and go, and orders change, is counted in trained batches.
//
// Single-threaded, as PsCluster.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/chaos/counting_workers.h"
#include "tests/chaos/order_changes.h"

namespace lodestone::chaos {

// What has been seen.
struct TurnoverReport {
  uint64_t runs = 0;    // Runs of kEpochs epochs whose samples were counted: none was missing, none trained twice.
  uint64_t joined = 0;  // Workers that were started,
  uint64_t left = 0;    // got SIGTERM, but for those of Pause,
  uint64_t killed = 0;  // or SIGKILL.
  uint64_t again = 0;   // Leases of ranges that another worker had had before.
  uint64_t orders = 0;  // Changes of the order of steps,
  uint64_t operators_killed = 0, operators_stopped = 0;  // whose operator this happened to.
};

class WorkerTurnover {
 public:
  static constexpr uint32_t kEpochs = 10;  // Of a run.

  struct Options {
    uint64_t seed = 1;
    uint32_t workers_max = 4;  // At a time.
    // What changes the order of steps meanwhile; empty: nothing.
    std::string psctl_binary;
    CountingWorkers::Options training;
  };
  // `cluster` must outlive this.
  WorkerTurnover(const PsCluster* cluster, const Options& options);

  // Lets the workers do what is due; to be called often. DATA_LOSS if a sample was trained another number of times than
  // it must; INTERNAL if a worker has failed.
  absl::Status Tick();

  // Has all workers leave, and starts none until Resume: then nothing is pushed by any.
  void Pause();
  void Resume() { paused_ = false; }
  // They are all gone, and nothing is being counted.
  bool idle() const {
    return training_.running().empty() && !counts_.valid() && (orders_ == nullptr || orders_->idle());
  }

  // From now on workers join, and none leaves or is killed once one has, and the order of steps is not changed once it
  // was. The run under way, or the next one if there is none, is the last; or else the one in which both have happened
  // and the order that was wanted last is set.
  void Finish() { finishing_ = true; }
  bool finished() const { return finished_; }
  // Batches of the run under way that are known to be applied.
  uint64_t done() const { return CountingWorkers::Done(state_); }

  TurnoverReport report() const;
  // "run 3, batch 120 of 1600, 2 workers".
  std::string Describe() const;

 private:
  absl::Status StartWorker();
  // Starts, ends or kills one, or changes the order of steps.
  absl::Status TakeTurn();
  absl::Status TakeCounts();
  bool RunIsOver() const;
  // What is to happen once at least, whatever the machine's speed, has not happened: no worker has left or was killed;
  // the order of steps was never changed.
  bool LacksEnd() const { return report_.left + report_.killed == 0; }
  bool LacksOrder() const { return orders_ != nullptr && orders_->set() == 0; }
  std::string RunName() const;
  uint64_t Draw(uint64_t bound);

  const uint64_t seed_;
  const uint32_t workers_max_;
  CountingWorkers training_;
  std::unique_ptr<OrderChanges> orders_;  // Null: it is not changed.
  TurnoverReport report_;
  v1::RangeState state_;    // The newest of the run under way that is known.
  int64_t asked_ms_ = 0;    // When it was asked for.
  uint64_t next_turn_ = 0;  // In batches of the run.
  std::set<pid_t> told_;    // Those that were told to end.
  uint64_t drawn_ = 0;
  bool paused_ = true;
  bool finishing_ = false;
  bool finished_ = false;
  std::future<absl::StatusOr<std::map<int64_t, uint64_t>>> counts_;  // Valid while samples are being counted.
};

}  // namespace lodestone::chaos
