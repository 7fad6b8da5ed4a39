#include "server/shard/executor.h"

#include <algorithm>
#include <utility>

#include "common/telemetry/metrics.h"

namespace lodestone::server {
namespace {

HistogramMetric wait_metric(
    "lodestone_ps_executor_wait_duration_seconds",
    "From the submission of a message to an executor until it runs; as good as 0 if the submitting thread runs it.");

// A thread that helps takes over no more messages than these: with more, two threads are better than one.
constexpr size_t kHelpMessagesMax = 4;

}  // namespace

Executor::~Executor() {
  Thread thread;
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wake_.NotifyAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void Executor::Submit(Message message, Order order) {
  Queued queued{std::move(message), order};
  if (LeaveToThread(&queued, mode_ == Mode::kThread)) return;
  wait_metric.ObserveNs(0);
  queued.message();
  queued.message = nullptr;  // What it holds goes before the next message runs.
  Leave(0, /*uncounted=*/1);
}

void Executor::SubmitAndHelp(Message message, Order order) {
  Queued queued{std::move(message), order, NowNs()};
  const int64_t until_ns = queued.since_ns + help_ns_;
  Queue batch;
  if (LeaveOrHelp(&queued, &batch)) return;
  Run(&batch);
  Leave(until_ns, /*uncounted=*/0);
}

void Executor::SubmitToThread(Message message, Order order) {
  Queued queued{std::move(message), order};
  LeaveToThread(&queued, /*even_if_idle=*/true);
}

bool Executor::LeaveToThread(Queued* message, bool even_if_idle) {
  bool wakes = false;
  {
    MutexLock lock(&mu_);
    const bool idle = !running_ && queue_.empty();
    if (idle && !even_if_idle) {
      running_ = true;
      return false;
    }
    Enqueue(message);
    wakes = idle;
    if (wakes) NeedThread();
  }
  if (wakes) wake_.NotifyOne();  // Without the lock, which the thread takes first.
  return true;
}

bool Executor::LeaveOrHelp(Queued* message, Queue* batch) {
  if (mode_ == Mode::kThread) return LeaveToThread(message, true);
  MutexLock lock(&mu_);
  if (!running_ && queue_.size() <= kHelpMessagesMax) {
    running_ = true;
    TakeQueue(batch);
    batch_free_ += message->order == Order::kFree;
    batch->push_back(std::move(*message));
    return false;
  }
  Enqueue(message);
  return true;
}

void Executor::Enqueue(Queued* message) {
  message->since_ns = NowNs();
  queued_free_ += message->order == Order::kFree;
  queue_.push_back(std::move(*message));
  queue_length_max_ = std::max(queue_length_max_, queue_.size());
}

void Executor::TakeQueue(Queue* batch) {
  batch->swap(queue_);
  batch_free_ = std::exchange(queued_free_, 0);
}

void Executor::Run(Queue* batch) {
  batch_ = batch;
  uint64_t run = 0;
  for (; !batch->empty(); ++run) {
    Queued queued = std::move(batch->front());
    batch->pop_front();
    batch_free_ -= queued.order == Order::kFree;
    RunOne(&queued);
  }
  batch_ = nullptr;
  MutexLock lock(&mu_);
  executed_ += run;
}

void Executor::RunOne(Queued* queued) const {
  if (mode_ == Mode::kCallerOrThread) wait_metric.ObserveNs(NowNs() - queued->since_ns);
  queued->message();
  queued->message = nullptr;  // What it holds goes before the next message runs.
}

bool Executor::FreeOnesWait() const {
  if (batch_free_ > 0) return true;
  MutexLock lock(&mu_);
  return queued_free_ > 0;
}

void Executor::Yield() {
  Queue free;
  const auto take_from = [&free](Queue* queue) {
    Queue in_order;
    for (Queued& queued : *queue) (queued.order == Order::kFree ? free : in_order).push_back(std::move(queued));
    queue->swap(in_order);
  };
  if (batch_free_ > 0) take_from(batch_);
  batch_free_ = 0;
  {
    MutexLock lock(&mu_);
    if (std::exchange(queued_free_, 0) > 0) take_from(&queue_);
  }
  for (Queued& queued : free) RunOne(&queued);
  MutexLock lock(&mu_);
  executed_ += free.size();
}

void Executor::Leave(int64_t help_until_ns, uint64_t uncounted) {
  Queue batch;
  bool wakes = false;
  while (true) {
    {
      MutexLock lock(&mu_);
      executed_ += std::exchange(uncounted, 0);
      if (queue_.empty() || queue_.size() > kHelpMessagesMax || NowNs() > help_until_ns) {
        running_ = false;
        wakes = !queue_.empty();
        if (wakes) NeedThread();
        break;
      }
      TakeQueue(&batch);
    }
    Run(&batch);
  }
  if (wakes) wake_.NotifyOne();
}

void Executor::NeedThread() {
  if (!thread_.joinable()) thread_ = Thread([this] { RunThread(); });
}

void Executor::SubmitAndWait(Message message) {
  Countdown done(1);
  Submit([&] {
    message();
    done.CountDown();
  });
  done.Wait();
}

size_t Executor::queue_length() const {
  MutexLock lock(&mu_);
  return queue_.size();
}

Executor::Stats Executor::stats() const {
  MutexLock lock(&mu_);
  const int64_t oldest_wait_ns = queue_.empty() ? 0 : NowNs() - queue_.front().since_ns;
  return {executed_, queue_.size(), queue_length_max_, oldest_wait_ns};
}

void Executor::RunThread() {
  Queue batch;
  while (true) {
    {
      MutexLock lock(&mu_);
      while (running_ || (queue_.empty() && !stopping_)) wake_.Wait(&mu_);
      if (queue_.empty()) return;
      running_ = true;
      TakeQueue(&batch);
    }
    Run(&batch);
    MutexLock lock(&mu_);
    running_ = false;
  }
}

}  // namespace lodestone::server
