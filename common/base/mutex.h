// A mutex and condition variable with thread-safety annotations, on the standard library's: ThreadSanitizer sees
// through these, while it cannot see into the system's uninstrumented Abseil.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "absl/base/thread_annotations.h"

namespace lodestone {

// A lock. Not recursive.
class ABSL_LOCKABLE Mutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    if (!mutex_.try_lock()) LockTaken();
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { mutex_.unlock(); }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;

  // Waits until the thread that holds it has unlocked it.
  void LockTaken();

  std::mutex mutex_;
};

// Holds a Mutex for a scope.
class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) { mutex_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mutex_;
};

// Waits under a Mutex. Wake-ups may be spurious: wait in a loop that tests the condition.
class CondVar {
 public:
  void Wait(Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // False if `deadline` passed.
  bool WaitUntil(Mutex* mutex, std::chrono::steady_clock::time_point deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // As WaitUntil, `ms` milliseconds from now.
  bool WaitForMs(Mutex* mutex, int64_t ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void NotifyOne() {
    cv_.notify_one();
    NotifySimulated();
  }
  void NotifyAll() {
    cv_.notify_all();
    NotifySimulated();
  }

 private:
  // In a simulation (simulation.h).
  void WaitSimulated(Mutex* mutex, int64_t until_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void NotifySimulated();

  std::condition_variable cv_;
};

// Counts down to 0, and lets wait for that: std::latch, where a simulation may have to wait too.
class Countdown {
 public:
  explicit Countdown(int64_t count) : count_(count) {}
  void CountDown() {
    MutexLock lock(&mu_);
    if (--count_ == 0) zero_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(&mu_);
    while (count_ > 0) zero_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar zero_;
  int64_t count_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone
