// The gate before each step of a worker whose tables' staleness is bounded (stale synchronous parallel: Ho et al., NIPS
// 2013): a step begins, and reads, once no other worker that trains is more than so many clocks behind.
//
// A worker's clock is c when all of its pushes of steps up to c are acknowledged; a step that takes the clock from c to
// c + 1 waits until the clocks of all others are c - staleness at least, so that what it reads lacks no update older
// than that. Batches that are read ahead pass the gate before their rows are asked for, with the number of the step
// that they will be.
//
// Where samples are leased (`moves_up`), a worker with nothing unacknowledged moves its clock up to the newest of the
// others before it begins a step, so that a slow one with fewer steps does not hold the others up; one that is behind
// by more than half of the staleness reads nothing ahead until it has nothing unacknowledged. The bound holds: a clock
// says that no update of a step up to it is missing, which is true of numbers that it has no steps of; its next update
// is of the new clock, so others may lack it for as long as any; and its own reads wait for more, not for less. A
// worker that has none of the ranges follows the lowest of the others likewise.
//
// A worker that joins late begins at the newest clock of the others. So the lowest clock that is known of the others
// stays true, and nobody asks for it again before it is too old: reports go with heartbeats, after half the staleness
// or at once if this worker waits itself, and a thread of the gate's asks for the others' clock ahead of need.
//
// The bound may change at any time, or be lifted: then nothing waits here, and the clock is reported now and then, for
// others for whom it has not been lifted yet.
//
// Thread-safe. Await belongs to one thread. The client must outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "proto/coordinator.pb.h"
#include "worker/metrics/delay_counts.h"

namespace lodestone::worker {

class Client;

class ClockGate {
 public:
  static constexpr uint32_t kUnbounded = std::numeric_limits<uint32_t>::max();

  struct Options {
    uint32_t staleness = 0;  // Clocks, or kUnbounded.
    Clock reached = 0;  // That others may think this worker has reached: steps that it took before there was a gate.
    bool moves_up = false;
    int64_t retry_timeout_ms = 60'000;  // How long a coordinator that does not answer is asked again.
    const TimeSource* time = nullptr;   // Must outlive it.
    // Asked now and then while Await waits, which then ends; empty: it waits until Stop. Any thread may call it.
    std::function<bool()> stops;
  };
  ClockGate(Client* client, Options options)
      : client_(client), options_(std::move(options)), staleness_(options_.staleness) {}
  ~ClockGate();

  // Takes part, at the newest clock of the others. Before the first step; call it once.
  absl::Status Start();
  // Waits until the next step may read, and returns the clock that it leads to, as Acknowledged wants it; 0 after Stop,
  // or if it had to wait when `stops` said so. Errors: that the coordinator has not answered for so long.
  absl::StatusOr<Clock> Await();
  // The pushes of that step are acknowledged.
  void Acknowledged(Clock clock);
  // There is no batch to begin, or there is one again: until then the clock follows the others'.
  void SetIdle(bool idle);
  // Another bound from the next step on. Any thread may call it.
  void SetStaleness(uint32_t staleness);
  // Ends Await, now and from now on, without a wait; returns begun(), above which no step has a clock of this gate.
  Clock Close();
  // Close, and ends the gate's thread: no call is under way any more.
  void Stop();
  // Moves the clock up to that of steps which this worker has begun without this gate. Before the first Await.
  void MoveUp(Clock to);

  // What is known of the others: values that are read from now on lack no update of theirs up to this clock.
  Clock lowest() const;
  // What this worker has reached.
  Clock clock() const;
  // What its steps that have begun lead to.
  Clock begun() const;
  // Whether values that were read when the others' lowest clock was `lowest` will do for the step that leads to
  // `clock`.
  bool WillDo(Clock lowest, Clock clock) const;
  // What has been observed: how far the slowest was behind at each step, and how long this worker has waited.
  v1::ConsistencyProgress Observed() const;

 private:
  Clock ReachedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return unacknowledged_.empty() ? begun_ : *unacknowledged_.begin() - 1;
  }
  bool WillDoLocked(Clock lowest, Clock clock) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !IsBounded() || lowest + staleness_ + 1 >= clock;
  }
  bool IsBounded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return staleness_ != kUnbounded; }
  bool MayBeginLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return WillDoLocked(lowest_, begun_ + 1); }
  // Moves the clock up to `to`, if nothing of this worker's is under way.
  void MoveUpLocked(Clock to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // This worker is so far behind that it ends what it has begun, and moves up.
  bool DrainsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return options_.moves_up && !unacknowledged_.empty() && newest_ > begun_ + staleness_ / 2;
  }
  // What the others' clock is asked for, and for how long.
  struct Question {
    Clock clock = 0;
    uint32_t hold_ms = 0;
  };
  // The next question; nullopt: none yet.
  std::optional<Question> NextLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reports what this worker has reached, if that is due.
  void ReportLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run();
  // Asks, again until the coordinator answers. `takes_part`: it tells what it has reached.
  absl::Status Ask(const Question& question, bool takes_part);

  Client* const client_;
  const Options options_;

  mutable Mutex mu_;
  CondVar changed_;
  uint32_t staleness_ ABSL_GUARDED_BY(mu_);
  Clock begun_ ABSL_GUARDED_BY(mu_) = 0;                 // That the last step which was begun leads to.
  std::set<Clock> unacknowledged_ ABSL_GUARDED_BY(mu_);  // Steps that were begun.
  Clock lowest_ ABSL_GUARDED_BY(mu_) = 0;                // Of the others, as far as is known,
  Clock newest_ ABSL_GUARDED_BY(mu_) = 0;                // and their newest.
  Clock reported_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t reported_ns_ ABSL_GUARDED_BY(mu_) = 0;
  // At the last answer: when, this worker's clock, the step that it had begun, and whether no other worker trained.
  int64_t asked_ns_ ABSL_GUARDED_BY(mu_) = 0;
  Clock asked_own_ ABSL_GUARDED_BY(mu_) = 0;
  Clock asked_begun_ ABSL_GUARDED_BY(mu_) = 0;
  bool alone_ ABSL_GUARDED_BY(mu_) = false;
  bool waits_ ABSL_GUARDED_BY(mu_) = false;
  bool idle_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  int64_t waited_ns_ ABSL_GUARDED_BY(mu_) = 0;
  DelayCounts behind_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

}  // namespace lodestone::worker
