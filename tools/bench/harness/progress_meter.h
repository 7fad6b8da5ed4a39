// How far a subscriber has come: bytes received, and the newest push whose values it has.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "tools/bench/harness/peer.h"

namespace lodestone::bench {

class ProgressMeter {
 public:
  void AddBytes(uint64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }

  // The values after push `number` (from 1) have arrived, and so those of all before; 0: the values before any.
  void Reach(uint64_t number) {
    const int64_t now = NowNs();
    MutexLock lock(&mu_);
    reached_ = static_cast<int64_t>(number);
    while (!under_way_.empty() && under_way_.front().first <= number) {
      const int64_t begin_ns = under_way_.front().second;
      if (now >= order_.start_ns && now < order_.end_ns) latencies_us_.push_back(1e-3f * (now - begin_ns));
      under_way_.pop_front();
    }
    changed_.NotifyAll();
  }

  // Waits for Reach(number) or beyond; DEADLINE_EXCEEDED after 30 s.
  absl::Status Await(uint64_t number) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    MutexLock lock(&mu_);
    while (reached_ < static_cast<int64_t>(number)) {
      if (!changed_.WaitUntil(&mu_, deadline)) return absl::DeadlineExceededError("a push was not broadcast in 30 s");
    }
    return absl::OkStatus();
  }

  // Counts what is received in the order's window.
  Outcome RunSubscriber(const Order& order) {
    Outcome outcome;
    outcome.operations = BytesInWindow(order);
    return outcome;
  }

  // The same, and calls `push` (which may block) with numbers from where the last order ended, order.depth of them
  // ahead of what has been received.
  absl::StatusOr<Outcome> RunPusher(const Order& order, const std::function<absl::Status(uint64_t number)>& push) {
    {
      MutexLock lock(&mu_);
      order_ = order;
      latencies_us_.clear();
    }
    Outcome outcome;
    std::thread counter([&] { outcome.operations = BytesInWindow(order); });
    absl::Status status;
    while (status.ok() && NowNs() < order.end_ns) {
      ++pushed_;
      if (pushed_ > order.depth) status = Await(pushed_ - order.depth);
      {
        MutexLock lock(&mu_);
        under_way_.emplace_back(pushed_, NowNs());
      }
      if (status.ok()) status = push(pushed_);
    }
    if (status.ok()) status = Await(pushed_);
    counter.join();
    if (!status.ok()) return status;
    MutexLock lock(&mu_);
    outcome.latencies_us = std::move(latencies_us_);
    return outcome;
  }

 private:
  static void SleepUntil(int64_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns - NowNs())); }

  uint64_t BytesInWindow(const Order& order) {
    SleepUntil(order.start_ns);
    const uint64_t before = bytes_.load(std::memory_order_relaxed);
    SleepUntil(order.end_ns);
    return bytes_.load(std::memory_order_relaxed) - before;
  }

  std::atomic<uint64_t> bytes_{0};
  uint64_t pushed_ = 0;  // Of the pushing thread.

  Mutex mu_;
  CondVar changed_;
  int64_t reached_ ABSL_GUARDED_BY(mu_) = -1;
  std::deque<std::pair<uint64_t, int64_t>> under_way_ ABSL_GUARDED_BY(mu_);  // Number and start of pushes.
  Order order_ ABSL_GUARDED_BY(mu_);
  std::vector<float> latencies_us_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::bench
