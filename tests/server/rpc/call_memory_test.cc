#include "server/rpc/call_memory.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "common/base/time_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CallMemoryTest : public ::testing::Test {
 protected:
  // Asks, in the name of `who`.
  bool Ask(uint64_t bytes, int who) {
    if (memory_.Ask(bytes)) return true;
    memory_.Await(bytes, [this, who] { turns_.push_back(who); });
    memory_.Settle();
    return false;
  }

  SteadyTime time_;
  CallMemory memory_{[] { return 100; }, &time_};
  std::vector<int> turns_;
};

TEST_F(CallMemoryTest, GivesRoomInTheOrderOfAsking) {
  EXPECT_TRUE(Ask(60, 1));
  EXPECT_FALSE(Ask(50, 2));
  EXPECT_FALSE(Ask(10, 3)) << "it would fit, but has come later";
  EXPECT_FALSE(Ask(60, 4));
  memory_.Give(60);
  EXPECT_THAT(turns_, ElementsAre(2, 3));
  EXPECT_EQ(memory_.bytes(), 60u);
  memory_.Give(50);
  EXPECT_THAT(turns_, ElementsAre(2, 3, 4));
  EXPECT_EQ(memory_.waiting(), 0u);
}

TEST_F(CallMemoryTest, WhoseOwnerIsGoneHoldsNobodyUp) {
  auto owner = std::make_shared<int>(0);
  EXPECT_TRUE(Ask(60, 1));
  memory_.Await(
      1000, [this] { turns_.push_back(2); }, owner);
  memory_.Settle();
  EXPECT_FALSE(Ask(40, 3));
  owner.reset();
  memory_.Settle();
  EXPECT_THAT(turns_, ElementsAre(3));
  EXPECT_EQ(memory_.bytes(), 100u);
  EXPECT_EQ(memory_.waiting(), 0u);
}

TEST_F(CallMemoryTest, WhatIsLongerThanAllRoomHasItAlone) {
  EXPECT_TRUE(Ask(10, 1));
  EXPECT_FALSE(Ask(1000, 2));
  EXPECT_THAT(turns_, IsEmpty());
  memory_.Give(10);
  EXPECT_THAT(turns_, ElementsAre(2));
  EXPECT_FALSE(Ask(1, 3));
}

TEST_F(CallMemoryTest, AnAnswerHasRoomBesideOthersOrAlone) {
  memory_.Take(30);
  EXPECT_TRUE(memory_.TakeAnswer(1000, /*held=*/30).ok()) << "nobody else holds anything";
  EXPECT_EQ(memory_.TakeAnswer(1, /*held=*/0).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(memory_.bytes(), 1030u);
  memory_.Give(1000);
  EXPECT_TRUE(memory_.TakeAnswer(70, /*held=*/0).ok());
  EXPECT_FALSE(memory_.TakeAnswer(1, /*held=*/70).ok());
  EXPECT_EQ(memory_.bytes(), 100u);
}

// Regression: each was let go on from within the one before, until the stack was full.
TEST_F(CallMemoryTest, ManyWhoGiveAtOnceWhatTheyHaveWaitedForGoOn) {
  constexpr int kWaiting = 200'000;
  int had = 0;
  ASSERT_TRUE(memory_.Ask(100));
  for (int i = 0; i < kWaiting; ++i) {
    memory_.Await(60, [&] {
      ++had;
      memory_.Give(60);
    });
  }
  memory_.Give(100);
  EXPECT_EQ(had, kWaiting);
  EXPECT_EQ(memory_.bytes(), 0u);
}

TEST_F(CallMemoryTest, TheStatusSaysWhoWaits) {
  Ask(100, 1);
  Ask(1, 2);
  v1::StatusResponse status;
  memory_.FillStatus("ps 3", &status);
  EXPECT_EQ(status.server().call_bytes(), 100u);
  EXPECT_EQ(status.server().call_bytes_max(), 150u) << "with that of large answers";
  ASSERT_EQ(status.waits_size(), 1);
  EXPECT_EQ(status.waits(0).who(), "ps 3");
  EXPECT_THAT(status.waits(0).what(), HasSubstr("room for calls: 1 wait while those under way take 100 of 100 bytes"));
}

TEST_F(CallMemoryTest, LargeAnswersHaveALineOfHalfAsManyBytesWhateverElseIsHeld) {
  memory_.Take(1000);
  MemoryLine& large = memory_.large_answers();
  EXPECT_TRUE(large.Ask(2000)) << "one of them always goes on";
  EXPECT_FALSE(large.Ask(1));
  large.Await(30, [this] { turns_.push_back(1); });
  large.Await(30, [this] { turns_.push_back(2); });
  large.Settle();
  v1::StatusResponse status;
  memory_.FillStatus("ps 3", &status);
  ASSERT_EQ(status.waits_size(), 1);
  EXPECT_THAT(status.waits(0).what(),
              HasSubstr("room for large answers: 2 wait while those under way take 2000 of 50 bytes"));
  large.Give(2000);
  EXPECT_THAT(turns_, ElementsAre(1));
  large.Give(30);
  EXPECT_THAT(turns_, ElementsAre(1, 2));
}

TEST_F(CallMemoryTest, HowMuchThereIsMayChangeAtAnyTime) {
  uint64_t bytes_max = 100;
  CallMemory memory([&bytes_max] { return bytes_max; }, &time_);
  EXPECT_TRUE(memory.Ask(60));
  bytes_max = 70;
  EXPECT_EQ(memory.large_answers().bytes_max(), 35u);
  EXPECT_FALSE(memory.Ask(20));
  bool went_on = false;
  memory.Await(20, [&went_on] { went_on = true; });
  memory.Settle();
  EXPECT_FALSE(went_on);
  bytes_max = 80;
  memory.Settle();
  EXPECT_TRUE(went_on);
}

// Each line lets the other's waiters go on, for as long as there are any.
TEST_F(CallMemoryTest, TwoLinesThatMakeRoomForEachOtherDoNotFillTheStack) {
  constexpr int kWaiting = 100'000;
  MemoryLine& large = memory_.large_answers();
  int had = 0;
  ASSERT_TRUE(memory_.Ask(100));
  ASSERT_TRUE(large.Ask(50));
  for (int i = 0; i < kWaiting; ++i) {
    memory_.Await(60, [&] {
      ++had;
      large.Give(50);
    });
    large.Await(50, [&] {
      ++had;
      memory_.Give(60);
    });
  }
  memory_.Give(100);
  EXPECT_EQ(had, 2 * kWaiting);
}

TEST_F(CallMemoryTest, NobodyIsForgottenThoughManyAskAndGiveAtOnce) {
  constexpr int kThreads = 4, kTimes = 5000;
  std::atomic<int> had{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kTimes; ++i) {
        const auto use = [&] {
          ++had;
          memory_.Give(60);
        };
        if (memory_.Ask(60)) {
          use();
        } else {
          memory_.Await(60, use);
          memory_.Settle();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(had, kThreads * kTimes);
  EXPECT_EQ(memory_.bytes(), 0u);
}

}  // namespace
}  // namespace lodestone::server
