// A queue of messages that run one at a time, in the order of their submission: the single owner of some shards.
//
// A thread that submits to an idle executor runs the message itself, so that no other thread need be woken; messages
// that arrive meanwhile are queued and run by the executor's own thread, which starts when it is first needed. To wake
// it takes longer than a short message, and what comes until it runs would be queued too, so that it were needed ever
// after: threads that may run others' messages help (SubmitAndHelp).
//
// A long message may let those run before it goes on that were submitted as kFree (Yield). All others keep their order,
// as if none yielded.
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

  enum class Order {
    kInOrder,  // After what was submitted before.
    kFree,     // Also while a message that was submitted before, and is kInOrder, yields.
  };

  // Where messages run.
  enum class Mode {
    kCallerOrThread,  // On the submitting thread if the executor is idle, else on the executor's.
    kThread,          // Always on the executor's thread.
  };
  // A thread that helps begins no message later than this after its own began, but for those that its own lets go
  // first: so long it would take to wake another.
  static constexpr int64_t kHelpNs = 100'000;
  explicit Executor(Mode mode = Mode::kCallerOrThread, int64_t help_ns = kHelpNs) : mode_(mode), help_ns_(help_ns) {}
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  void Submit(Message message, Order order = Order::kInOrder);
  // As Submit, by a thread that also runs what others have submitted: before its own what nobody has begun, and
  // afterwards, if it has not taken long, what has come meanwhile. REQUIRES: the thread holds no lock that a message
  // takes.
  void SubmitAndHelp(Message message, Order order = Order::kInOrder);
  // Submits for the executor's thread, even if the executor is idle.
  void SubmitToThread(Message message, Order order = Order::kInOrder);
  // Submits, and waits until the message has run. REQUIRES: not called from a message of this executor.
  void SubmitAndWait(Message message);

  // Messages waiting now.
  size_t queue_length() const;

  // Whether messages wait that may run while another one yields; and runs those that do. REQUIRES: called from a
  // message of this executor that is kInOrder.
  bool FreeOnesWait() const;
  void Yield();

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
    Order order = Order::kInOrder;
    int64_t since_ns = 0;
  };
  using Queue = std::deque<Queued>;

  // Queues `message` for the executor's thread, if there is another to wait for or `even_if_idle`. If not, the caller
  // is to run the message, and nobody else runs one until it calls Leave.
  bool LeaveToThread(Queued* message, bool even_if_idle);
  // Queues `message` for the executor's thread if another thread runs messages, or too many wait. If not, the caller is
  // to run those that waited and, after them, its own: `batch`.
  bool LeaveOrHelp(Queued* message, Queue* batch);
  void Enqueue(Queued* message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Moves the queue to `batch`, which the caller is to run.
  void TakeQueue(Queue* batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs the messages of `batch`, and counts them.
  void Run(Queue* batch);
  void RunOne(Queued* queued) const;
  // The caller has run its message, and so many that are not counted yet. What came meanwhile is left to the thread or,
  // until `help_until_ns`, run.
  void Leave(int64_t help_until_ns, uint64_t uncounted);
  // Starts the thread, unless it has been; the caller wakes it.
  void NeedThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunThread();

  const Mode mode_;
  const int64_t help_ns_;

  mutable Mutex mu_;
  CondVar wake_;
  Queue queue_ ABSL_GUARDED_BY(mu_);
  size_t queued_free_ ABSL_GUARDED_BY(mu_) = 0;  // Of these, kFree ones.
  bool running_ ABSL_GUARDED_BY(mu_) = false;    // A thread runs messages. If none does, the queue is the thread's.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t executed_ ABSL_GUARDED_BY(mu_) = 0;
  size_t queue_length_max_ ABSL_GUARDED_BY(mu_) = 0;
  Thread thread_ ABSL_GUARDED_BY(mu_);

  // Of the thread that runs messages: those that it has taken and not begun; null if it has taken none.
  Queue* batch_ = nullptr;
  size_t batch_free_ = 0;  // Of these, kFree ones.
};

}  // namespace lodestone::server
