#include "common/base/mutex.h"

#include "common/base/simulation.h"

namespace lodestone {

void Mutex::LockTaken() {
  Simulation* const simulation = Simulation::Current();
  if (simulation == nullptr) return mutex_.lock();
  while (!mutex_.try_lock()) simulation->Wait(this, simulation->NowMs() + 1);
}

void CondVar::Wait(Mutex* mutex) {
  if (Simulation::Current() != nullptr) return WaitSimulated(mutex, Simulation::kNever);
  std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
  cv_.wait(lock);
  lock.release();
}

bool CondVar::WaitUntil(Mutex* mutex, std::chrono::steady_clock::time_point deadline) {
  if (Simulation::Current() != nullptr) {
    const auto left = deadline - std::chrono::steady_clock::now();
    return WaitForMs(mutex, std::chrono::duration_cast<std::chrono::milliseconds>(left).count());
  }
  std::unique_lock<std::mutex> lock(mutex->mutex_, std::adopt_lock);
  const bool in_time = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
  lock.release();
  return in_time;
}

bool CondVar::WaitForMs(Mutex* mutex, int64_t ms) {
  Simulation* const simulation = Simulation::Current();
  if (simulation == nullptr) {
    return WaitUntil(mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(ms));
  }
  const int64_t until_ms = simulation->NowMs() + ms;
  WaitSimulated(mutex, until_ms);
  return simulation->NowMs() < until_ms;
}

void CondVar::WaitSimulated(Mutex* mutex, int64_t until_ms) {
  mutex->Unlock();
  Simulation::Current()->Wait(this, until_ms);
  mutex->Lock();
}

void CondVar::NotifySimulated() {
  if (Simulation* const simulation = Simulation::Current(); simulation != nullptr) simulation->Notify(this);
}

}  // namespace lodestone
