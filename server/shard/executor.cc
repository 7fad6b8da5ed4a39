#include "server/shard/executor.h"

#include <algorithm>
#include <utility>

#include "common/telemetry/metrics.h"

namespace lodestone::server {
namespace {

HistogramMetric wait_metric(
    "lodestone_ps_executor_wait_duration_seconds",
    "From the submission of a message to an executor until it runs; 0 if the submitting thread runs it.");

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

void Executor::Submit(Message message) {
  if (LeaveToThread(&message, mode_ == Mode::kThread)) return;
  wait_metric.ObserveNs(0);
  message();
  message = nullptr;  // What it holds goes before the next message runs.
  Leave(0);
}

void Executor::SubmitAndHelp(Message message) {
  std::deque<Queued> waiting;
  if (LeaveOrHelp(&message, &waiting)) return;
  const int64_t until_ns = NowNs() + help_ns_;
  if (!waiting.empty()) Run(&waiting);
  wait_metric.ObserveNs(0);
  message();
  message = nullptr;
  Leave(until_ns);
}

void Executor::SubmitToThread(Message message) { LeaveToThread(&message, /*even_if_idle=*/true); }

bool Executor::LeaveToThread(Message* message, bool even_if_idle) {
  bool wakes = false;
  {
    MutexLock lock(&mu_);
    const bool idle = !running_ && queue_.empty();
    if (idle && !even_if_idle) {
      running_ = true;
      return false;
    }
    Queue(message);
    wakes = idle;
    if (wakes) NeedThread();
  }
  if (wakes) wake_.NotifyOne();  // Without the lock, which the thread takes first.
  return true;
}

bool Executor::LeaveOrHelp(Message* message, std::deque<Queued>* waiting) {
  if (mode_ == Mode::kThread) return LeaveToThread(message, true);
  MutexLock lock(&mu_);
  if (!running_ && queue_.size() <= kHelpMessagesMax) {
    running_ = true;
    waiting->swap(queue_);
    return false;
  }
  Queue(message);
  return true;
}

void Executor::Queue(Message* message) {
  queue_.push_back({std::move(*message), NowNs()});
  queue_length_max_ = std::max(queue_length_max_, queue_.size());
}

void Executor::Run(std::deque<Queued>* batch) {
  batch_left_ = batch->size();
  for (Queued& queued : *batch) {
    --batch_left_;
    if (mode_ == Mode::kCallerOrThread) wait_metric.ObserveNs(NowNs() - queued.since_ns);
    queued.message();
    queued.message = nullptr;
  }
  MutexLock lock(&mu_);
  executed_ += batch->size();
  batch->clear();
}

void Executor::Leave(int64_t help_until_ns) {
  std::deque<Queued> batch;
  bool wakes = false;
  for (bool first = true;; first = false) {
    {
      MutexLock lock(&mu_);
      executed_ += first;
      if (queue_.empty() || queue_.size() > kHelpMessagesMax || NowNs() > help_until_ns) {
        running_ = false;
        wakes = !queue_.empty();
        if (wakes) NeedThread();
        break;
      }
      batch.swap(queue_);
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
  std::deque<Queued> batch;
  while (true) {
    {
      MutexLock lock(&mu_);
      while (running_ || (queue_.empty() && !stopping_)) wake_.Wait(&mu_);
      if (queue_.empty()) return;
      running_ = true;
      batch.swap(queue_);
    }
    Run(&batch);
    MutexLock lock(&mu_);
    running_ = false;
  }
}

}  // namespace lodestone::server
