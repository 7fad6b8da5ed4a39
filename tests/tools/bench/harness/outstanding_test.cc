#include "tools/bench/harness/outstanding.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <limits>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "gtest/gtest.h"

namespace lodestone::bench {
namespace {

// Ends steps on a thread of its own, in the order in which they came; the first not before `hold` are under way.
class Echo {
 public:
  explicit Echo(size_t hold) : hold_(hold), thread_([this] { Run(); }) {}
  ~Echo() {
    {
      MutexLock lock(&mu_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }
  void Take(Done done) {
    MutexLock lock(&mu_);
    waiting_.push_back(std::move(done));
    most_ = std::max(most_, waiting_.size());
    changed_.NotifyAll();
  }
  size_t most() {
    MutexLock lock(&mu_);
    return most_;
  }

 private:
  void Run() {
    for (;;) {
      Done done;
      {
        MutexLock lock(&mu_);
        while (waiting_.size() < hold_ && !stopping_) changed_.Wait(&mu_);
        if (waiting_.empty()) return;
        hold_ = 1;
        done = std::move(waiting_.front());
        waiting_.pop_front();
      }
      done(absl::OkStatus());
    }
  }

  Mutex mu_;
  CondVar changed_;
  size_t hold_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  size_t most_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Done> waiting_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

Order OrderFor(uint32_t depth, int64_t ms) {
  Order order;
  order.depth = depth;
  order.start_ns = NowNs();
  order.end_ns = order.start_ns + ms * 1'000'000;
  return order;
}

TEST(RunOutstanding, KeepsAsManyUnderWayAsTold) {
  Echo echo(/*hold=*/4);  // Would wait forever if fewer were under way.
  Order order = OrderFor(4, 0);
  order.end_ns = std::numeric_limits<int64_t>::max();  // Only the error ends it.
  uint64_t started = 0;
  const absl::StatusOr<Outcome> outcome = RunOutstanding(order, 1, [&](uint64_t number, uint32_t step, Done done) {
    EXPECT_EQ(number, started++);
    EXPECT_EQ(step, 0);
    if (number == 1000) return done(absl::CancelledError("enough"));
    echo.Take(std::move(done));
  });
  EXPECT_EQ(outcome.status().message(), "enough");
  EXPECT_EQ(started, 1001);
  EXPECT_EQ(echo.most(), 4);
}

TEST(RunOutstanding, CountsAndTimesEveryOperationThatEndsInTheWindow) {
  Order order = OrderFor(1, 20);
  uint64_t ended_in_time = 0;
  const absl::StatusOr<Outcome> outcome = RunOutstanding(order, 1, [&](uint64_t, uint32_t, const Done& done) {
    done(absl::OkStatus());
    if (NowNs() < order.end_ns) ++ended_in_time;
  });
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_GE(outcome->operations, ended_in_time);  // One may end just before the end and be seen just after it.
  EXPECT_LE(outcome->operations, ended_in_time + 1);
  EXPECT_EQ(outcome->latencies_us.size(), outcome->operations);
}

TEST(RunOutstanding, StartsEachStepOfAnOperationAfterTheOneBeforeAndOneAtATime) {
  Echo echo(1);
  std::set<uint64_t> under_second;
  uint64_t firsts = 0, seconds = 0;
  std::atomic<int> starting{0};
  const absl::StatusOr<Outcome> outcome =
      RunOutstanding(OrderFor(2, 20), 2, [&](uint64_t number, uint32_t step, Done done) {
        EXPECT_EQ(++starting, 1);
        if (step == 0) {
          ++firsts;
        } else {
          EXPECT_EQ(step, 1);
          EXPECT_TRUE(under_second.insert(number).second);
          ++seconds;
        }
        --starting;
        echo.Take(std::move(done));
      });
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_GT(firsts, 0);
  EXPECT_EQ(firsts, seconds);
  EXPECT_LE(outcome->operations, firsts);
}

TEST(RunOutstanding, CountsOnlyWhatEndsInTheWindow) {
  Order order = OrderFor(1, 20);
  order.start_ns = order.end_ns;  // An empty window.
  uint64_t started = 0;
  const absl::StatusOr<Outcome> outcome = RunOutstanding(order, 1, [&](uint64_t, uint32_t, const Done& done) {
    ++started;
    done(absl::OkStatus());
  });
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  EXPECT_GT(started, 0);
  EXPECT_EQ(outcome->operations, 0);
}

TEST(RunOutstanding, EndsWithTheFirstErrorOnceNothingIsUnderWay) {
  Echo echo(1);
  Order order = OrderFor(3, 0);
  order.end_ns = std::numeric_limits<int64_t>::max();  // Only the error ends it.
  const absl::StatusOr<Outcome> outcome = RunOutstanding(order, 2, [&](uint64_t number, uint32_t, Done done) {
    if (number == 5) return done(absl::DataLossError("five"));
    echo.Take(std::move(done));
  });
  EXPECT_EQ(outcome.status().message(), "five");
}

}  // namespace
}  // namespace lodestone::bench
