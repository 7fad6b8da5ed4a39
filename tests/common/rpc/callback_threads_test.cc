#include "common/rpc/callback_threads.h"

#include <atomic>
#include <deque>
#include <latch>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

using Callback = CallbackThreads::Callback;

// Events that a test makes.
class Events {
 public:
  void Add(Callback callback) {
    MutexLock lock(&mu_);
    callbacks_.push_back(std::move(callback));
    changed_.NotifyOne();
  }
  void End() {
    MutexLock lock(&mu_);
    ended_ = true;
    changed_.NotifyAll();
  }
  Callback Next() {
    MutexLock lock(&mu_);
    while (callbacks_.empty() && !ended_) changed_.Wait(&mu_);
    if (callbacks_.empty()) return nullptr;
    Callback callback = std::move(callbacks_.front());
    callbacks_.pop_front();
    return callback;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::deque<Callback> callbacks_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

class CallbackThreadsTest : public ::testing::Test {
 protected:
  void Start(size_t pollers, int64_t stuck_ms) {
    threads_ = std::make_unique<CallbackThreads>([this] { return events_.Next(); }, pollers, stuck_ms);
  }
  void TearDown() override {
    events_.End();
    threads_.reset();
  }

  Events events_;
  std::unique_ptr<CallbackThreads> threads_;
};

TEST_F(CallbackThreadsTest, EveryCallbackRunsOnceWhileTurnsAreTaken) {
  Start(2, /*stuck_ms=*/0);
  constexpr int kCallbacks = 10'000;
  std::vector<std::atomic<int>> runs(kCallbacks);
  std::latch left(kCallbacks);
  for (std::atomic<int>& run : runs) {
    events_.Add([&] {
      ++run;
      left.count_down();
    });
  }
  left.wait();
  events_.End();
  threads_.reset();
  for (const std::atomic<int>& run : runs) ASSERT_EQ(run.load(), 1);
}

TEST_F(CallbackThreadsTest, ACallbackThatWaitsForAnotherOneGetsIt) {
  Start(1, 1);
  for (int i = 0; i < 20; ++i) {
    std::latch second(1);
    std::latch first(1);
    events_.Add([&] {
      second.wait();
      first.count_down();
    });
    events_.Add([&] { second.count_down(); });
    first.wait();
  }
}

TEST_F(CallbackThreadsTest, ACallbackIsWatchedHoweverLongNothingHappenedBefore) {
  Start(1, /*stuck_ms=*/0);
  for (int i = 0; i < 100; ++i) {
    for (int pause = 0; pause < i % 5; ++pause) std::this_thread::yield();  // Meanwhile it may stop being watched.
    std::latch second(1);
    std::latch first(1);
    events_.Add([&] {
      second.wait();
      first.count_down();
    });
    events_.Add([&] { second.count_down(); });
    first.wait();
  }
}

TEST_F(CallbackThreadsTest, OneThreadRunsWhatDoesNotWait) {
  Start(1, /*stuck_ms=*/3'600'000);
  Mutex mu;
  std::set<std::thread::id> threads;
  std::latch left(100);
  for (int i = 0; i < 100; ++i) {
    events_.Add([&] {
      {
        MutexLock lock(&mu);
        threads.insert(std::this_thread::get_id());
      }
      left.count_down();
    });
  }
  left.wait();
  EXPECT_EQ(threads.size(), 1);
}

TEST_F(CallbackThreadsTest, TheEndWaitsForACallbackWhoseTurnWasTaken) {
  Start(1, 1);
  std::latch go(1);
  std::atomic<bool> over{false};
  events_.Add([&] {
    go.wait();
    over.store(true);
  });
  std::latch taken(1);
  events_.Add([&] { taken.count_down(); });
  taken.wait();
  events_.End();
  go.count_down();
  threads_.reset();
  EXPECT_TRUE(over.load());
}

}  // namespace
}  // namespace lodestone
