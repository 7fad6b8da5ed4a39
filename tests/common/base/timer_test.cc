#include "common/base/timer.h"

#include <latch>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

TEST(Timer, RunsFunctionsInTheOrderTheyAreDue) {
  std::vector<int> ran;  // By the timer's thread alone.
  std::latch done(3);
  Timer timer;
  timer.After(60, [&] { ran.push_back(3), done.count_down(); });
  timer.After(1, [&] { ran.push_back(1), done.count_down(); });
  timer.After(30, [&] { ran.push_back(2), done.count_down(); });
  done.wait();
  EXPECT_EQ(ran, (std::vector<int>{1, 2, 3}));
}

TEST(Timer, NeverRunsWhatWasCancelled) {
  bool ran = false;
  std::latch done(1);
  Timer timer;
  const Timer::Id id = timer.After(5, [&] { ran = true; });
  const bool cancelled = timer.Cancel(id);
  EXPECT_FALSE(timer.Cancel(id));
  timer.After(10, [&] { done.count_down(); });
  done.wait();
  EXPECT_EQ(ran, !cancelled);
  EXPECT_FALSE(timer.Cancel(0));
}

TEST(Timer, LetsAFunctionUseTheTimer) {
  std::latch done(1);
  Timer timer;
  timer.After(0, [&] {
    const Timer::Id dropped = timer.After(0, [] { FAIL(); });
    EXPECT_TRUE(timer.Cancel(dropped));
    timer.After(0, [&] { done.count_down(); });
  });
  done.wait();
}

TEST(Timer, DropsWhatIsNotDueAtTheEnd) {
  bool ran = false;
  {
    Timer timer;
    timer.After(3'600'000, [&] { ran = true; });
  }
  EXPECT_FALSE(ran);
}

TEST(Timer, FollowsTheClockItIsGivenAndRunsTheRestAtTheEnd) {
  ManualTime time;
  std::vector<int> ran;
  {
    Timer timer(&time, Timer::AtEnd::kRun);
    timer.After(20, [&] { ran.push_back(20); });
    timer.After(10, [&] { ran.push_back(10); });
    timer.After(3'600'000, [&] { ran.push_back(99); });
    time.AdvanceMs(9);
    timer.CheckTime();
    EXPECT_TRUE(ran.empty());
    time.AdvanceMs(11);
    timer.CheckTime();
    EXPECT_EQ(ran, (std::vector<int>{10, 20}));
  }
  EXPECT_EQ(ran, (std::vector<int>{10, 20, 99}));
}

}  // namespace
}  // namespace lodestone
