#include "common/base/delays.h"

#include <chrono>
#include <utility>
#include <vector>

namespace lodestone::server {

Delays::~Delays() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
  std::multimap<int64_t, std::function<void()>> left;
  {
    MutexLock lock(&mu_);
    left.swap(due_);
  }
  for (const auto& [due_ms, what] : left) what();
}

void Delays::After(int64_t ms, std::function<void()> what) {
  MutexLock lock(&mu_);
  const auto at = due_.emplace(time_->NowMs() + ms, std::move(what));
  if (at == due_.begin()) changed_.NotifyAll();
}

void Delays::CheckTime() {
  MutexLock doing(&doing_mu_);
  std::vector<std::function<void()>> now;
  {
    MutexLock lock(&mu_);
    const auto end = due_.upper_bound(time_->NowMs());
    for (auto at = due_.begin(); at != end; ++at) now.push_back(std::move(at->second));
    due_.erase(due_.begin(), end);
  }
  for (const auto& what : now) what();
}

void Delays::Run() {
  mu_.Lock();
  while (!stopping_) {
    if (due_.empty()) {
      changed_.Wait(&mu_);
      continue;
    }
    const int64_t left_ms = due_.begin()->first - time_->NowMs();
    if (left_ms > 0) {
      changed_.WaitUntil(&mu_, std::chrono::steady_clock::now() + std::chrono::milliseconds(left_ms));
      continue;
    }
    mu_.Unlock();
    CheckTime();
    mu_.Lock();
  }
  mu_.Unlock();
}

}  // namespace lodestone::server
