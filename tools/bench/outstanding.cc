#include "tools/bench/outstanding.h"

#include <deque>
#include <memory>
#include <utility>

#include "common/mutex.h"

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
    MutexLock lock(&mu_);
    StartAll();
    while (starting_ || free_ < order_.depth) ended_.Wait(&mu_);
    if (!status_.ok()) return status_;
    return std::move(outcome_);
  }

 private:
  // Starts what can be started, unless somebody is about it: then he finds it. The mutex is free meanwhile.
  void StartAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (starting_) return;
    starting_ = true;
    Ready ready;
    while (Next(&ready)) {
      mu_.Unlock();
      start_(ready.number, ready.step,
             [self = shared_from_this(), ready](absl::Status status) { self->OnStepDone(ready, status); });
      mu_.Lock();
    }
    starting_ = false;
    if (free_ == order_.depth) ended_.NotifyOne();
  }

  // False if nothing can be started now.
  bool Next(Ready* ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!ready_.empty()) {
      *ready = ready_.front();
      ready_.pop_front();
      return true;
    }
    const int64_t now = NowNs();
    if (free_ == 0 || now >= order_.end_ns || !status_.ok()) return false;
    --free_;
    *ready = {next_++, 0, now};
    return true;
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
    StartAll();
  }

  const Order order_;
  const uint32_t steps_;
  const StartStep& start_;

  Mutex mu_;
  CondVar ended_;
  bool starting_ ABSL_GUARDED_BY(mu_) = false;  // Somebody is in StartAll.
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
