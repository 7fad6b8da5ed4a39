#include "server/rpc/broadcast_schedule.h"

#include <algorithm>

#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using std::chrono::milliseconds;

constexpr BroadcastSchedule::Time kStart{std::chrono::hours(1)};

// Each subscriber once had a phase of its own: as many wake-ups per period as subscribers, each over all of them.
TEST(BroadcastScheduleTest, AThousandSubscribersOfOnePeriodAreOneWakeUpPerPeriod) {
  BroadcastSchedule schedule;
  for (uint64_t id = 1; id <= 1000; ++id) schedule.Add(id, milliseconds(100), kStart + milliseconds(id % 97));
  int wakes = 0;
  while (*schedule.next() < kStart + milliseconds(1050)) {
    EXPECT_EQ(schedule.TakeDue(*schedule.next()).size(), 1000);
    ++wakes;
  }
  EXPECT_EQ(wakes, 10);
}

TEST(BroadcastScheduleTest, ASubscriberIsDueWithinItsPeriodAndThenEachPeriod) {
  BroadcastSchedule schedule;
  EXPECT_FALSE(schedule.next().has_value());
  schedule.Add(1, milliseconds(100), kStart);
  schedule.Add(2, milliseconds(100), kStart + milliseconds(60));
  schedule.Add(3, milliseconds(30), kStart + milliseconds(60));
  EXPECT_TRUE(schedule.TakeDue(kStart + milliseconds(89)).empty());
  EXPECT_EQ(*schedule.next(), kStart + milliseconds(90));
  EXPECT_EQ(schedule.TakeDue(kStart + milliseconds(90)), (std::vector<uint64_t>{3}));
  std::vector<uint64_t> due = schedule.TakeDue(kStart + milliseconds(100));
  std::sort(due.begin(), due.end());
  EXPECT_EQ(due, (std::vector<uint64_t>{1, 2}));
}

TEST(BroadcastScheduleTest, MissedMomentsAreSkippedAndTheRhythmIsKept) {
  BroadcastSchedule schedule;
  schedule.Add(1, milliseconds(100), kStart);
  EXPECT_EQ(schedule.TakeDue(kStart + milliseconds(430)).size(), 1);
  EXPECT_EQ(*schedule.next(), kStart + milliseconds(500));
  EXPECT_TRUE(schedule.TakeDue(kStart + milliseconds(499)).empty());
  EXPECT_EQ(schedule.TakeDue(kStart + milliseconds(500)).size(), 1);
  EXPECT_EQ(*schedule.next(), kStart + milliseconds(600));
}

TEST(BroadcastScheduleTest, OneThatWasRemovedIsNotDueAnyMore) {
  BroadcastSchedule schedule;
  schedule.Add(1, milliseconds(100), kStart);
  schedule.Add(2, milliseconds(100), kStart);
  schedule.Remove(1, milliseconds(100));
  EXPECT_EQ(schedule.TakeDue(kStart + milliseconds(100)), (std::vector<uint64_t>{2}));
  schedule.Remove(2, milliseconds(100));
  schedule.Remove(3, milliseconds(50));
  EXPECT_FALSE(schedule.next().has_value());
}

}  // namespace
}  // namespace lodestone::server
