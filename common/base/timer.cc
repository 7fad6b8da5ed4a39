#include "common/base/timer.h"

#include <chrono>

namespace lodestone {

Timer::Timer(const TimeSource* time, AtEnd at_end)
    : time_(time != nullptr ? time : &steady_), at_end_(at_end), thread_([this] { Run(); }) {}

Timer::~Timer() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  if (at_end_ == AtEnd::kDrop) return;
  std::map<Due, std::function<void()>> left;
  {
    MutexLock lock(&mu_);
    left.swap(functions_);
    due_.clear();
  }
  for (const auto& [due, function] : left) function();
}

Timer::Id Timer::After(int64_t ms, std::function<void()> function) {
  MutexLock lock(&mu_);
  const Due due(time_->NowMs() + ms, ++last_id_);
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

void Timer::CheckTime() {
  MutexLock running(&running_mu_);
  for (;;) {
    std::function<void()> function;
    {
      MutexLock lock(&mu_);
      if (stopping_) return;
      function = TakeDue();
    }
    if (function == nullptr) return;
    function();
  }
}

std::function<void()> Timer::TakeDue() {
  const auto first = functions_.begin();
  if (first == functions_.end() || first->first.first > time_->NowMs()) return nullptr;
  std::function<void()> function = std::move(first->second);
  due_.erase(first->first.second);
  functions_.erase(first);
  return function;
}

void Timer::Run() {
  for (;;) {
    {
      MutexLock lock(&mu_);
      for (;;) {
        if (stopping_) return;
        if (functions_.empty()) {
          changed_.Wait(&mu_);
          continue;
        }
        const int64_t left_ms = functions_.begin()->first.first - time_->NowMs();
        if (left_ms <= 0) break;
        changed_.WaitForMs(&mu_, left_ms);
      }
    }
    CheckTime();
  }
}

}  // namespace lodestone
