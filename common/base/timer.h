// Runs functions later, on one thread of its own.
//
// Thread-safe. Functions must be quick; they may call After and Cancel.
//
// The destructor drops what is not yet due and waits for the function that is running.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "common/base/mutex.h"

namespace lodestone::worker {

class Timer {
 public:
  using Id = uint64_t;  // 0 names nothing.

  Timer();
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Runs `function` in `ms` milliseconds.
  Id After(int64_t ms, std::function<void()> function);

  // True if the function will not run; false if it has run, is running, or was cancelled before.
  bool Cancel(Id id);

 private:
  using Due = std::pair<std::chrono::steady_clock::time_point, Id>;

  void Run();

  Mutex mu_;
  CondVar changed_;
  std::map<Due, std::function<void()>> functions_ ABSL_GUARDED_BY(mu_);
  std::map<Id, Due> due_ ABSL_GUARDED_BY(mu_);
  Id last_id_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace lodestone::worker
