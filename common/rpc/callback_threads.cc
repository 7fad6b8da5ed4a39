#include "common/rpc/callback_threads.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/check.h"

namespace lodestone {

CallbackThreads::CallbackThreads(Next next, size_t pollers, int64_t stuck_ms)
    : next_(std::move(next)), stuck_ms_(stuck_ms) {
  LODESTONE_CHECK(pollers > 0);
  for (size_t i = 0; i < pollers; ++i) turns_.push_back(std::make_unique<Turn>());
  for (const auto& turn : turns_) threads_.emplace_back([this, turn = turn.get()] { Run(turn); });
  threads_.emplace_back([this] { Run(nullptr); });
}

CallbackThreads::~CallbackThreads() {
  for (std::thread& thread : threads_) thread.join();
}

bool CallbackThreads::busy() const {
  return std::all_of(turns_.begin(), turns_.end(), [](const auto& turn) { return turn->steps.load() % 2 == 1; });
}

void CallbackThreads::Run(Turn* turn) {
  pthread_setname_np(pthread_self(), "callbacks");
  do {
    if (turn == nullptr) turn = AwaitTurn();
    if (turn == nullptr) return;
  } while (RunCallbacks(std::exchange(turn, nullptr)));
}

bool CallbackThreads::RunCallbacks(Turn* turn) {
  while (true) {
    Callback callback = next_();
    if (!callback) {
      MutexLock lock(&mu_);
      ended_ = true;
      changed_.NotifyAll();
      return false;
    }
    uint64_t begun = turn->steps.load() + 1;
    turn->steps.store(begun);
    if (!watched_.load()) Watch();
    callback();
    callback = nullptr;
    if (!turn->steps.compare_exchange_strong(begun, begun + 1)) return true;
  }
}

void CallbackThreads::Watch() {
  MutexLock lock(&mu_);
  watched_.store(true);
  changed_.NotifyAll();
}

CallbackThreads::Turn* CallbackThreads::AwaitTurn() {
  MutexLock lock(&mu_);
  while (!ended_) {
    if (!watched_.load()) {
      changed_.Wait(&mu_);
      continue;
    }
    for (const auto& turn : turns_) turn->seen = turn->steps.load();
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(stuck_ms_);
    while (!ended_ && changed_.WaitUntil(&mu_, end)) {
    }
    bool idle = true;
    for (const auto& turn : turns_) {
      uint64_t steps = turn->steps.load();
      idle &= steps == turn->seen && steps % 2 == 0;
      if (steps == turn->seen && steps % 2 == 1 && turn->steps.compare_exchange_strong(steps, steps + 1)) {
        return turn.get();
      }
    }
    if (!idle) continue;
    // A thread that begins a callback after this sets watched_; one that began before is seen below.
    watched_.store(false);
    for (const auto& turn : turns_) {
      if (turn->steps.load() != turn->seen) watched_.store(true);
    }
  }
  return nullptr;
}

}  // namespace lodestone
