#include "server/shard/executor.h"

#include <algorithm>
#include <utility>

#include "common/telemetry/metrics.h"

namespace lodestone::server {
namespace {

HistogramMetric wait_metric(
    "lodestone_ps_executor_wait_duration_seconds",
    "From the submission of a message to an executor until it runs; 0 if the submitting thread runs it.");

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
  {
    MutexLock lock(&mu_);
    ++executed_;
    busy_ = !queue_.empty();
    if (!busy_) return;
    HandOver();
  }
  wake_.NotifyOne();
}

void Executor::SubmitToThread(Message message) { LeaveToThread(&message, /*even_if_idle=*/true); }

bool Executor::LeaveToThread(Message* message, bool even_if_idle) {
  bool idle = false;
  {
    MutexLock lock(&mu_);
    idle = !std::exchange(busy_, true);
    if (idle && !even_if_idle) return false;
    queue_.push_back({std::move(*message), NowNs()});
    queue_length_max_ = std::max(queue_length_max_, queue_.size());
    if (idle) HandOver();
  }
  if (idle) wake_.NotifyOne();  // Without the lock, which the thread takes first.
  return true;
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

void Executor::HandOver() {
  handed_ = true;
  if (!thread_.joinable()) thread_ = Thread([this] { RunThread(); });
}

void Executor::RunThread() {
  std::deque<Queued> batch;
  mu_.Lock();
  while (true) {
    while (!handed_ && !stopping_) wake_.Wait(&mu_);
    if (!handed_) break;
    batch.swap(queue_);
    mu_.Unlock();
    for (Queued& queued : batch) {
      if (mode_ == Mode::kCallerOrThread) wait_metric.ObserveNs(NowNs() - queued.since_ns);
      queued.message();
      queued.message = nullptr;
    }
    mu_.Lock();
    executed_ += batch.size();
    batch.clear();
    if (queue_.empty()) {
      handed_ = false;
      busy_ = false;
    }
  }
  mu_.Unlock();
}

}  // namespace lodestone::server
