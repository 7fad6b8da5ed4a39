#include "common/base/timer.h"

namespace lodestone::worker {

Timer::Timer() : thread_([this] { Run(); }) {}

Timer::~Timer() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

Timer::Id Timer::After(int64_t ms, std::function<void()> function) {
  MutexLock lock(&mu_);
  const Due due(std::chrono::steady_clock::now() + std::chrono::milliseconds(ms), ++last_id_);
  functions_.emplace(due, std::move(function));
  due_.emplace(due.second, due);
  if (functions_.begin()->first == due) changed_.NotifyAll();
  return due.second;
}

bool Timer::Cancel(Id id) {
  std::function<void()> dropped;  // Destroyed after the lock: what it holds may have a destructor that calls us.
  MutexLock lock(&mu_);
  const auto due = due_.find(id);
  if (due == due_.end()) return false;
  const auto entry = functions_.find(due->second);
  dropped = std::move(entry->second);
  functions_.erase(entry);
  due_.erase(due);
  return true;
}

void Timer::Run() {
  for (;;) {
    std::function<void()> function;
    {
      MutexLock lock(&mu_);
      while (!stopping_ && (functions_.empty() || functions_.begin()->first.first > std::chrono::steady_clock::now())) {
        if (functions_.empty()) {
          changed_.Wait(&mu_);
        } else {
          const auto due = functions_.begin()->first.first;  // A copy: the entry may go while the lock is released.
          changed_.WaitUntil(&mu_, due);
        }
      }
      if (stopping_) return;
      function = std::move(functions_.begin()->second);
      due_.erase(functions_.begin()->first.second);
      functions_.erase(functions_.begin());
    }
    function();
  }
}

}  // namespace lodestone::worker
