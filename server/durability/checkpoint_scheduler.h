// The thread of periodic checkpoints, which runs the jobs that others hand it in between: one thing at a time.
//
// Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/simulation.h"
#include "common/base/time_source.h"

namespace lodestone::server {

class CheckpointScheduler {
 public:
  // Called on the thread.
  struct Calls {
    std::function<absl::Status()> checkpoint;  // Each period, and when is_due says so.
    std::function<absl::Status()> arrived;     // After Soon, before anything else that is due.
    std::function<bool()> is_due;              // About each second: whether the next checkpoint is not to wait.
  };
  // `period`: 0: no checkpoint is due by time.
  CheckpointScheduler(std::chrono::milliseconds period, Calls calls) : period_(period), calls_(std::move(calls)) {}
  ~CheckpointScheduler() { Close(); }

  void Start();
  // Has `job` run on the thread, waits, and returns its result. UNAVAILABLE before Start and from Close on.
  absl::Status Run(std::function<absl::Status()> job);
  // Shards have arrived that are in no checkpoint. One that fails is tried again soon. May be called before Start.
  void Soon();
  // Ends the thread after what it is running; jobs that wait get UNAVAILABLE. False, and nothing happens, before Start;
  // false for all calls but the first after it.
  bool Close();

 private:
  struct Job {
    std::function<absl::Status()> run;
    std::optional<absl::Status> result;
  };

  void RunThread();

  const std::chrono::milliseconds period_;
  const SteadyTime time_;
  const Calls calls_;

  Mutex mu_;
  CondVar changed_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<int64_t> soon_at_ms_ ABSL_GUARDED_BY(mu_);  // See Soon.
  std::deque<Job*> jobs_ ABSL_GUARDED_BY(mu_);              // Of callers that wait; results are guarded too.
  Thread thread_;
};

}  // namespace lodestone::server
