// A timer whose thread starts when it is first needed, and that ends before its owner does.
//
// Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/timer.h"

namespace lodestone::server {

class OnDemandTimer {
 public:
  // By `time`, which must outlive this.
  explicit OnDemandTimer(const TimeSource* time) : time_(time) {}
  ~OnDemandTimer() { Stop(); }

  // As Timer's; after Stop nothing runs, and the id is 0.
  Timer::Id After(int64_t ms, std::function<void()> function) {
    MutexLock lock(&mu_);
    if (stopped_) return 0;
    if (timer_ == nullptr) timer_ = std::make_unique<Timer>(time_, Timer::AtEnd::kDrop);
    return timer_->After(ms, std::move(function));
  }
  bool Cancel(Timer::Id id) {
    MutexLock lock(&mu_);
    return timer_ != nullptr && timer_->Cancel(id);
  }
  // Drops what is not due, and waits for the function that runs. REQUIRES: not called by one.
  void Stop() {
    std::unique_ptr<Timer> ended;  // Destroyed after the lock: the function that runs may call After.
    MutexLock lock(&mu_);
    stopped_ = true;
    ended = std::move(timer_);
  }
  // As Timer::CheckTime, for tests that move the time by hand.
  void CheckTime() {
    Timer* timer = nullptr;
    {
      MutexLock lock(&mu_);
      timer = timer_.get();
    }
    if (timer != nullptr) timer->CheckTime();
  }

 private:
  const TimeSource* const time_;
  Mutex mu_;
  std::unique_ptr<Timer> timer_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::server
