// A queue of messages that run one at a time, in the order of their submission: the single owner of some shards.
//
// A thread that submits to an idle executor runs the message itself, so that no other thread need be woken; messages
// that arrive meanwhile are queued and run by the executor's own thread, which starts when it is first needed.
//
// Thread-safe. A message may submit to its own executor (it is queued) but must not wait for it.
//
// The destructor runs what is queued and joins the thread. REQUIRES: every submission has returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

#include "common/base/mutex.h"
#include "common/base/simulation.h"

namespace lodestone::server {

class Executor {
 public:
  using Message = std::function<void()>;

  // Where messages run.
  enum class Mode {
    kCallerOrThread,  // On the submitting thread if the executor is idle, else on the executor's.
    kThread,          // Always on the executor's thread.
  };
  explicit Executor(Mode mode = Mode::kCallerOrThread) : mode_(mode) {}
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void Submit(Message message);
  // Submits for the executor's thread, even if the executor is idle.
  void SubmitToThread(Message message);
  // Submits, and waits until the message has run. REQUIRES: not called from a message of this executor.
  void SubmitAndWait(Message message);

  // Messages waiting now.
  size_t queue_length() const;

  struct Stats {
    uint64_t executed = 0;
    size_t queue_length = 0;
    size_t queue_length_max = 0;
    int64_t oldest_wait_ns = 0;  // Of the messages that wait.
  };
  Stats stats() const;

 private:
  struct Queued {
    Message message;
    int64_t since_ns = 0;
  };

  // Queues `message`. False if the executor was idle and nothing was queued: the caller, which makes it busy, is to run
  // the message. `even_if_idle`: queues it then too.
  bool LeaveToThread(Message* message, bool even_if_idle);
  // From now on the thread runs messages; the caller wakes it.
  void HandOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunThread();

  const Mode mode_;

  mutable Mutex mu_;
  CondVar wake_;
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;    // A thread runs messages.
  bool handed_ ABSL_GUARDED_BY(mu_) = false;  // It is the executor's thread, or will be.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t executed_ ABSL_GUARDED_BY(mu_) = 0;
  size_t queue_length_max_ ABSL_GUARDED_BY(mu_) = 0;
  Thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::server
