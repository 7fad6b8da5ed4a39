// A timer: runs functions after a delay, on one thread of its own.
//
// Thread-safe. A function holds up those that are due after it; it may call After and Cancel.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/simulation.h"
#include "common/base/time_source.h"

namespace lodestone {

class Timer {
 public:
  using Id = uint64_t;  // 0 names nothing.

  // What the destructor does with functions that are not yet due. It waits for the one that is running either way.
  enum class AtEnd { kDrop, kRun };

  // By the machine's steady clock.
  Timer() : Timer(nullptr, AtEnd::kDrop) {}
  // By `time`, which must outlive this; null: the machine's steady clock.
  Timer(const TimeSource* time, AtEnd at_end);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Runs `function` in `ms` milliseconds; functions of the same time run in the order in which they were given.
  Id After(int64_t ms, std::function<void()> function);

  // True if the function will not run; false if it has run, is running, or was cancelled before.
  bool Cancel(Id id);

  // Runs what is due, and waits until it has run. For tests that move `time` by hand: the thread does so by itself.
  void CheckTime();

 private:
  using Due = std::pair<int64_t, Id>;  // Milliseconds of the clock.

  void Run();
  // Takes the first function if it is due; null if none is.
  std::function<void()> TakeDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SteadyTime steady_;
  const TimeSource* const time_;
  const AtEnd at_end_;

  Mutex running_mu_;  // Held while a function runs; taken before mu_.
  Mutex mu_;
  CondVar changed_;
  std::map<Due, std::function<void()>> functions_ ABSL_GUARDED_BY(mu_);
  std::map<Id, Due> due_ ABSL_GUARDED_BY(mu_);
  Id last_id_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  Thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone
