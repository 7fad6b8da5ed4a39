// Waits for things to happen in a chaos run, and notices meanwhile what must not: processes and clients that end by
// themselves, and things that do not happen.
//
// Single-threaded, as PsCluster.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "common/base/time_source.h"
#include "tests/chaos/ps_cluster.h"

namespace lodestone::chaos {

class Watch {
 public:
  struct Options {
    // What has not happened for so long does not happen any more.
    int64_t patience_ms = 90'000;
    // Counted up, by a signal handler, when the run shall end; may be null.
    const std::atomic<int>* interrupts = nullptr;
    // Called while something is waited for, every 20 ms or so; an error ends the wait.
    std::function<absl::Status()> on_tick;
  };
  // `cluster` must outlive this.
  Watch(PsCluster* cluster, Options options) : cluster_(cluster), options_(std::move(options)) {}

  int64_t NowMs() const { return time_.NowMs(); }

  // Waits until `condition` holds. DEADLINE_EXCEEDED, naming `what`, if it does not for too long; INTERNAL if a process
  // ended that must not have; CANCELLED if the run shall end; otherwise what on_tick said.
  absl::Status Await(const std::function<bool()>& condition, const std::string& what);
  // Lets this much time pass. Errors as Await.
  absl::Status Pass(int64_t ms);
  // Interrupts so far count no more: there is something to do before the end.
  void TakeInterrupts() { interrupts_taken_ = interrupts(); }

 private:
  absl::Status Tick(int ms);
  int interrupts() const { return options_.interrupts == nullptr ? 0 : options_.interrupts->load(); }

  PsCluster* const cluster_;
  const Options options_;
  const SteadyTime time_;
  int interrupts_taken_ = 0;
};

}  // namespace lodestone::chaos
