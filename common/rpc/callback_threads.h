// Threads that take events from a queue and run their callbacks: `pollers` of them at a time, and one more, which steps
// in for a thread whose callback does not come to an end.
//
// A thread that waits beside the one that polls is not free with gRPC: a thread that gets an event first wakes another
// one to poll in its place. So there are no more than are needed; and yet callbacks may wait for the disk.
//
// The destructor joins the threads. REQUIRES: there are no more events by then, or soon.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/mutex.h"

namespace lodestone {

class CallbackThreads {
 public:
  using Callback = std::function<void()>;
  // Waits for an event and returns its callback; null, from then on, if there will be no more. Thread-safe.
  using Next = std::function<Callback()>;

  // A callback that takes longer than `stuck_ms`, or up to twice that, is stuck. REQUIRES: pollers > 0.
  CallbackThreads(Next next, size_t pollers, int64_t stuck_ms);
  ~CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;
  CallbackThreads& operator=(const CallbackThreads&) = delete;

  // Whether each of the threads that poll is in a callback at the moment.
  bool busy() const;

 private:
  // The right to poll. Its holder counts up when a callback begins and when it has ended; it may be taken over
  // in between, by counting in the holder's place.
  struct Turn {
    std::atomic<uint64_t> steps{0};  // Odd: a callback runs.
    uint64_t seen = 0;               // By the spare thread.
  };

  // `turn` is null for the spare thread.
  void Run(Turn* turn);
  // Until another thread has taken the turn: true; or there are no more events: false.
  bool RunCallbacks(Turn* turn);
  // Waits until a callback is stuck and takes its thread's turn. Null once there are no more events.
  Turn* AwaitTurn();
  void Watch();

  const Next next_;
  const int64_t stuck_ms_;
  std::vector<std::unique_ptr<Turn>> turns_;  // Constant after construction.

  // Whether the spare thread looks at the turns from time to time: not while all threads wait for events.
  std::atomic<bool> watched_{false};

  Mutex mu_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;

  std::vector<std::thread> threads_;  // Last: they use all of the above.
};

}  // namespace lodestone
