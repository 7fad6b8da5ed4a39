#include "tools/bench/outstanding.h"

#include <deque>

#include "common/mutex.h"

namespace lodestone::bench {
namespace {

// An operation whose next step is to be started.
struct Ready {
  uint64_t number = 0;
  uint32_t step = 0;
  int64_t begin_ns = 0;
};

class Outstanding {
 public:
  Outstanding(const Order& order, uint32_t steps, const StartStep& start)
      : order_(order), steps_(steps), start_(start), free_(order.depth) {}

  absl::StatusOr<Outcome> Run() {
    Ready ready;
    while (Next(&ready)) {
      start_(ready.number, ready.step, [this, ready](absl::Status status) { OnStepDone(ready, status); });
    }
    MutexLock lock(&mu_);
    if (!status_.ok()) return status_;
    return std::move(outcome_);
  }

 private:
  // Waits for a step to start; false once there are no more and nothing is under way.
  bool Next(Ready* ready) {
    MutexLock lock(&mu_);
    for (;;) {
      const int64_t now = NowNs();
      const bool ending = now >= order_.end_ns || !status_.ok();
      if (!ready_.empty()) {
        *ready = ready_.front();
        ready_.pop_front();
        return true;
      }
      if (!ending && free_ > 0) {
        --free_;
        *ready = {next_++, 0, now};
        return true;
      }
      if (ending && free_ == order_.depth) return false;
      changed_.Wait(&mu_);
    }
  }

  void OnStepDone(Ready done, const absl::Status& status) {
    const int64_t now = NowNs();
    MutexLock lock(&mu_);
    if (!status.ok() && status_.ok()) status_ = status;
    if (status_.ok() && ++done.step < steps_) {
      ready_.push_back(done);
    } else {
      ++free_;
      if (now >= order_.start_ns && now < order_.end_ns) {
        ++outcome_.operations;
        outcome_.latencies_us.push_back(1e-3f * static_cast<float>(now - done.begin_ns));
      }
    }
    changed_.NotifyOne();  // Under the lock: Run may return, and this end, as soon as it is free.
  }

  const Order order_;
  const uint32_t steps_;
  const StartStep& start_;

  Mutex mu_;
  CondVar changed_;
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t free_ ABSL_GUARDED_BY(mu_);
  std::deque<Ready> ready_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  Outcome outcome_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<Outcome> RunOutstanding(const Order& order, uint32_t steps, const StartStep& start) {
  return Outstanding(order, steps, start).Run();
}

}  // namespace lodestone::bench
