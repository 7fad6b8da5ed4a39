#include "tools/bench/harness/outstanding.h"

#include <atomic>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "common/base/mutex.h"

namespace lodestone::bench {
namespace {

// An operation whose next step is to be started.
struct Ready {
  uint64_t number = 0;
  uint32_t step = 0;
  int64_t begin_ns = 0;
};

// Lives until the last operation has told of its end, which may be a moment after Run.
class Outstanding : public std::enable_shared_from_this<Outstanding> {
 public:
  Outstanding(const Order& order, uint32_t steps, const StartStep& start)
      : order_(order), steps_(steps), start_(start), free_(order.depth) {}

  absl::StatusOr<Outcome> Run() {
    StartAll();
    MutexLock lock(&mu_);
    while (!IsOver()) over_.Wait(&mu_);
    if (!status_.ok()) return status_;
    return std::move(outcome_);
  }

 private:
  // Starts what can be started. Others who want to, meanwhile, wait: who starts does not do so for long.
  void StartAll() {
    if (starter_.load() == std::this_thread::get_id()) return;  // An operation has ended where it was started.
    MutexLock starting(&start_mu_);
    starter_.store(std::this_thread::get_id());
    Ready ready;
    while (Next(&ready)) {
      start_(ready.number, ready.step,
             [self = shared_from_this(), ready](absl::Status status) { self->OnStepDone(ready, status); });
    }
    starter_.store(std::thread::id());
  }

  // False if nothing can be started now.
  bool Next(Ready* ready) {
    MutexLock lock(&mu_);
    if (!ready_.empty()) {
      *ready = ready_.front();
      ready_.pop_front();
      return true;
    }
    const int64_t now = NowNs();
    if (free_ > 0 && status_.ok() && now < order_.end_ns) {
      --free_;
      *ready = {next_++, 0, now};
      return true;
    }
    if (IsOver()) over_.NotifyOne();
    return false;
  }

  bool IsOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return free_ == order_.depth && (!status_.ok() || NowNs() >= order_.end_ns);
  }

  void OnStepDone(Ready done, const absl::Status& status) {
    {
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
    }
    StartAll();
  }

  const Order order_;
  const uint32_t steps_;
  const StartStep& start_;

  Mutex start_mu_;  // Before mu_. One starts at a time.
  std::atomic<std::thread::id> starter_{};

  Mutex mu_;
  CondVar over_;
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t free_ ABSL_GUARDED_BY(mu_);
  std::deque<Ready> ready_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  Outcome outcome_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<Outcome> RunOutstanding(const Order& order, uint32_t steps, const StartStep& start) {
  return std::make_shared<Outstanding>(order, steps, start)->Run();
}

}  // namespace lodestone::bench
