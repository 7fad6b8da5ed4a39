#include "server/shard/executor.h"

#include <barrier>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

TEST(Executor, RunsAMessageOnTheCallersThreadWhenIdle) {
  Executor executor;
  std::thread::id ran_on;
  executor.Submit([&] { ran_on = std::this_thread::get_id(); });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_EQ(executor.stats().executed, 1u);
}

TEST(Executor, RunsOnItsOwnThreadInThreadMode) {
  Executor executor(Executor::Mode::kThread);
  std::thread::id ran_on;
  executor.SubmitAndWait([&] { ran_on = std::this_thread::get_id(); });
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST(Executor, LeavesToItsThreadWhatIsToRunThere) {
  Executor executor;
  for (int i = 0; i < 3; ++i) {
    std::thread::id ran_on;
    std::latch done(1);
    executor.SubmitToThread([&] {
      ran_on = std::this_thread::get_id();
      done.count_down();
    });
    done.wait();
    EXPECT_NE(ran_on, std::this_thread::get_id());
  }
}

TEST(Executor, QueuesWhatComesWhileItIsBusyAndKeepsTheOrder) {
  Executor executor;
  std::vector<int> order;
  executor.Submit([&] {
    for (int i = 1; i <= 100; ++i) executor.Submit([&order, i] { order.push_back(i); });
    order.push_back(0);
  });
  executor.SubmitAndWait([] {});
  ASSERT_EQ(order.size(), 101u);
  for (int i = 0; i <= 100; ++i) EXPECT_EQ(order[i], i);
  EXPECT_EQ(executor.stats().queue_length, 0u);
  EXPECT_GE(executor.stats().queue_length_max, 100u);
}

TEST(Executor, NeverRunsTwoMessagesAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kMessages = 2000;
  Executor executor;
  int64_t counter = 0;  // Unsynchronised on purpose: the executor is what orders its updates.
  std::latch start(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      start.arrive_and_wait();
      for (int i = 0; i < kMessages; ++i) {
        const auto count = [&] { counter = counter + 1; };
        i % 3 == 0   ? executor.Submit(count)
        : i % 3 == 1 ? executor.SubmitAndHelp(count)
                     : executor.SubmitToThread(count);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  executor.SubmitAndWait([] {});
  EXPECT_EQ(counter, kThreads * kMessages);
}

TEST(Executor, AThreadThatHelpsRunsWhatComesMeanwhile) {
  constexpr int64_t kLongNs = 600'000'000'000;
  Executor executor(Executor::Mode::kCallerOrThread, kLongNs);
  std::vector<std::thread::id> ran_on;
  executor.SubmitAndHelp([&] {
    executor.Submit([&] {
      ran_on.push_back(std::this_thread::get_id());
      executor.SubmitAndHelp([&] { ran_on.push_back(std::this_thread::get_id()); });
    });
  });
  EXPECT_EQ(ran_on, std::vector(2, std::this_thread::get_id()));
  EXPECT_EQ(executor.stats().executed, 3u);
}

TEST(Executor, AThreadThatHelpsLeavesToItsThreadWhatComesTooLate) {
  Executor executor(Executor::Mode::kCallerOrThread, /*help_ns=*/-1);
  std::thread::id ran_on;
  executor.SubmitAndHelp([&] { executor.Submit([&] { ran_on = std::this_thread::get_id(); }); });
  executor.SubmitAndWait([] {});
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST(Executor, OneThatHelpsDoesNotOvertake) {
  constexpr int kMessages = 1000;
  Executor executor;
  std::vector<int> order;
  for (int i = 0; i < kMessages; i += 2) {
    executor.SubmitToThread([&order, i] { order.push_back(i); });
    executor.SubmitAndHelp([&order, i] { order.push_back(i + 1); });
  }
  executor.SubmitAndWait([] {});
  ASSERT_EQ(order.size(), size_t{kMessages});
  for (int i = 0; i < kMessages; ++i) EXPECT_EQ(order[i], i);
}

// Of what waits, wherever it waits: in the queue, or behind the message that was taken with it.
TEST(Executor, AMessageThatYieldsLetsFreeOnesRunAndKeepsTheOrderOfOthers) {
  for (const bool taken_together : {false, true}) {
    Executor executor;
    std::vector<std::string> ran;
    const auto note = [&ran](const char* what) { return [&ran, what] { ran.push_back(what); }; };
    const auto submit_others = [&] {
      executor.Submit(note("in order 1"));
      executor.Submit(note("free 1"), Executor::Order::kFree);
      executor.Submit(note("in order 2"));
      executor.Submit(note("free 2"), Executor::Order::kFree);
    };
    std::latch held{1}, released{1};
    executor.SubmitToThread([&] {
      held.count_down();
      released.wait();
    });
    held.wait();
    executor.Submit([&] {
      if (!taken_together) submit_others();
      ran.push_back("began");
      EXPECT_TRUE(executor.FreeOnesWait());
      executor.Yield();
      EXPECT_FALSE(executor.FreeOnesWait());
      executor.Yield();
      ran.push_back("ended");
    });
    if (taken_together) submit_others();
    released.count_down();
    executor.SubmitAndWait([] {});
    executor.SubmitAndWait([] {});  // Behind what came while the first one waited.
    EXPECT_THAT(ran, testing::ElementsAre("began", "free 1", "free 2", "ended", "in order 1", "in order 2"));
    EXPECT_EQ(executor.stats().queue_length, 0u);
  }
}

// Regression: a thread that helps ran what had waited as if nothing came after it.
TEST(Executor, WhatAThreadThatHelpsBringsRunsWhileWhatItHelpsWithYields) {
  for (int tries = 0;; ++tries) {
    ASSERT_LT(tries, 100'000) << "it never helped";
    Executor executor;
    std::vector<int> ran;
    std::thread::id first_ran_on;
    executor.SubmitToThread([&] {
      first_ran_on = std::this_thread::get_id();
      ran.push_back(1);
      executor.Yield();
      ran.push_back(2);
    });
    executor.SubmitAndHelp([&] { ran.push_back(3); }, Executor::Order::kFree);
    executor.SubmitAndWait([] {});
    if (first_ran_on != std::this_thread::get_id()) continue;
    EXPECT_THAT(ran, testing::ElementsAre(1, 3, 2));
    return;
  }
}

TEST(Executor, RunsEverythingQueuedBeforeItIsDestroyed) {
  int ran = 0;
  std::latch go(1);
  {
    Executor executor(Executor::Mode::kThread);
    executor.Submit([&] { go.wait(); });
    for (int i = 0; i < 50; ++i) executor.Submit([&] { ++ran; });
    go.count_down();
  }
  EXPECT_EQ(ran, 50);
}

TEST(Executor, DestroysWhatAMessageHoldsBeforeTheNextOneRuns) {
  Executor executor;
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> watch = held;
  bool gone = false;
  executor.Submit([&executor, &gone, watch, held = std::move(held)] {
    executor.Submit([&gone, watch] { gone = watch.expired(); });
  });
  executor.SubmitAndWait([] {});
  EXPECT_TRUE(gone);
}

}  // namespace
}  // namespace lodestone::server
