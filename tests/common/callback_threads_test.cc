#include "common/callback_threads.h"

#include <atomic>
#include <deque>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "common/mutex.h"
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

TEST_F(CallbackThreadsTest, EveryCallbackRunsOnce) {
  Start(2, 1);
  constexpr int kCallbacks = 10'000;
  absl::BlockingCounter left(kCallbacks);  // Fails below 0.
  for (int i = 0; i < kCallbacks; ++i) events_.Add([&] { left.DecrementCount(); });
  left.Wait();
}

TEST_F(CallbackThreadsTest, ACallbackThatWaitsForAnotherOneGetsIt) {
  Start(1, 1);
  for (int i = 0; i < 20; ++i) {
    absl::Notification second;
    absl::Notification first;
    events_.Add([&] {
      second.WaitForNotification();
      first.Notify();
    });
    events_.Add([&] { second.Notify(); });
    first.WaitForNotification();
  }
}

TEST_F(CallbackThreadsTest, ACallbackThatComesAfterAPauseIsWatchedToo) {
  Start(1, 1);
  for (int i = 0; i < 5; ++i) {
    // The spare thread has stopped watching by the time that several of its periods have passed.
    absl::Notification waits;
    waits.WaitForNotificationWithTimeout(absl::Milliseconds(5));
    absl::Notification second;
    absl::Notification first;
    events_.Add([&] {
      second.WaitForNotification();
      first.Notify();
    });
    events_.Add([&] { second.Notify(); });
    first.WaitForNotification();
  }
}

TEST_F(CallbackThreadsTest, OneThreadRunsWhatDoesNotWait) {
  Start(1, /*stuck_ms=*/3'600'000);
  Mutex mu;
  std::set<std::thread::id> threads;
  absl::BlockingCounter left(100);
  for (int i = 0; i < 100; ++i) {
    events_.Add([&] {
      {
        MutexLock lock(&mu);
        threads.insert(std::this_thread::get_id());
      }
      left.DecrementCount();
    });
  }
  left.Wait();
  EXPECT_EQ(threads.size(), 1);
}

TEST_F(CallbackThreadsTest, TheEndWaitsForACallbackWhoseTurnWasTaken) {
  Start(1, 1);
  absl::Notification go;
  std::atomic<bool> over{false};
  events_.Add([&] {
    go.WaitForNotification();
    over.store(true);
  });
  absl::Notification taken;
  events_.Add([&] { taken.Notify(); });
  taken.WaitForNotification();
  events_.End();
  go.Notify();
  threads_.reset();
  EXPECT_TRUE(over.load());
}

}  // namespace
}  // namespace lodestone
