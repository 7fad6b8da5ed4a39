// A value that a callback brings to a thread that waits for it.
//
// Copies share the value: one goes into the callback. Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "common/base/mutex.h"

namespace lodestone {

template <typename T>
class Awaited {
 public:
  // Call once.
  void Set(T value) const {
    const std::shared_ptr<State> state = state_;  // The waiting thread, once woken, may destroy this.
    {
      MutexLock lock(&state->mu);
      state->value = std::move(value);
    }
    state->set.NotifyOne();  // Without the lock, which the thread takes first.
  }
  // Waits for the value, and takes it. Call once, from one thread.
  T Await() const {
    MutexLock lock(&state_->mu);
    while (!state_->value.has_value()) state_->set.Wait(&state_->mu);
    return *std::move(state_->value);
  }

 private:
  struct State {
    Mutex mu;
    CondVar set;
    std::optional<T> value ABSL_GUARDED_BY(mu);
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace lodestone
