#include "worker/training/lead.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

constexpr Lead kWaiting = {.batches_ahead = 0, .pushes_in_flight = 1, .waits = true};

// Reports one decision's worth of pushes with this mean delay.
class Reported {
 public:
  explicit Reported(LeadControl* control) : control_(control) {}
  bool Delay(double mean, double others = 0) {
    pushes_ += LeadControl::kPushesPerDecision;
    sum_ += mean * LeadControl::kPushesPerDecision;
    others_sum_ += others * LeadControl::kPushesPerDecision;
    return control_->Update(pushes_, sum_, others_sum_);
  }

 private:
  LeadControl* const control_;
  uint64_t pushes_ = 0;
  double sum_ = 0;
  double others_sum_ = 0;
};

LeadControl::Options Bounds(uint32_t batches, uint32_t pushes, uint32_t delay) {
  return {.batches_ahead_max = batches, .pushes_in_flight_max = pushes, .delay_max = delay};
}

TEST(LeadControl, BeginsWithAWorkerThatWaits) { EXPECT_EQ(LeadControl(Bounds(2, 4, 3)).lead(), kWaiting); }

TEST(LeadControl, EndsTheWaitThenAddsABatchThenAPushWhileThereIsRoomForMoreDelay) {
  LeadControl control(Bounds(2, 4, 10));
  Reported reported(&control);
  const Lead expected[] = {{0, 1}, {1, 1}, {1, 2}, {2, 2}, {2, 3}, {2, 4}};
  for (const Lead& lead : expected) {
    EXPECT_TRUE(reported.Delay(1));
    EXPECT_EQ(control.lead(), lead);
  }
}

// Four workers on two cores: 2 to 3 updates by others while each waits for its pushes, 7 without.
TEST(LeadControl, GoesOnWaitingWhereOthersUpdatesLeaveNoRoom) {
  LeadControl control(Bounds(2, 4, 2));
  Reported reported(&control);
  for (const double delay : {1.0, 1.6, 2.9, 0.6}) {
    EXPECT_FALSE(reported.Delay(delay)) << delay << ": without the wait it would be over two";
    EXPECT_EQ(control.lead(), kWaiting);
  }
  EXPECT_TRUE(reported.Delay(0.5));
  EXPECT_EQ(control.lead(), (Lead{0, 1}));
}

TEST(LeadControl, GoesBackWhenTheDelayIsAboveWhatIsAllowed) {
  LeadControl control(Bounds(2, 4, 4));
  Reported reported(&control);
  EXPECT_TRUE(reported.Delay(0));
  EXPECT_TRUE(reported.Delay(1));
  EXPECT_TRUE(reported.Delay(2.9));
  EXPECT_EQ(control.lead(), (Lead{1, 2}));
  EXPECT_FALSE(reported.Delay(6)) << "no room for more, and it was less before";
  EXPECT_TRUE(reported.Delay(6.1));
  EXPECT_EQ(control.lead(), (Lead{1, 1}));
  EXPECT_TRUE(reported.Delay(5.1));
  EXPECT_EQ(control.lead(), (Lead{0, 1}));
  EXPECT_FALSE(reported.Delay(4.9)) << "a mean of few pushes is not exact";
  EXPECT_TRUE(reported.Delay(5.1));
  EXPECT_EQ(control.lead(), kWaiting);
  EXPECT_FALSE(reported.Delay(9)) << "what remains is others'";
  EXPECT_EQ(control.lead(), kWaiting);
}

// One worker whose delay is 1.3 at one level and 2.6 at the next: in either of them for ever it would be slower than it
// need be, or later than it may.
TEST(LeadControl, GoesToAndFroBetweenTwoLevelsSoThatTheMeanIsWhatIsAllowed) {
  LeadControl control(Bounds(2, 4, 2));
  Reported reported(&control);
  constexpr int kDecisions = 300;
  double sum = 0;
  for (int i = 0; i < kDecisions; ++i) {
    const double delay = control.lead().waits ? 0 : 1.3 * control.lead().pushes_in_flight;
    sum += delay;
    reported.Delay(delay);
    EXPECT_LE(control.lead().pushes_in_flight, 2);
  }
  EXPECT_GT(sum / kDecisions, 1.95);
  EXPECT_LE(sum / kDecisions, 2.01);
}

TEST(LeadControl, DoesNotWaitAgainForALittleMoreThanIsAllowedWhereThereAreNoLevelsBetween) {
  for (const LeadControl::Options& bounds : {Bounds(0, 1, 2), Bounds(0, 4, 2)}) {
    LeadControl control(bounds);
    Reported reported(&control);
    EXPECT_TRUE(reported.Delay(0));
    for (int i = 0; i < 100; ++i) {
      reported.Delay(i % 10 == 0 ? 1.9 : 2.2);
      ASSERT_FALSE(control.lead().waits) << i;
    }
  }
}

TEST(LeadControl, ALongDebtIsForgotten) {
  LeadControl control(Bounds(2, 4, 2));
  Reported reported(&control);
  EXPECT_TRUE(reported.Delay(0));
  EXPECT_TRUE(reported.Delay(1));
  for (int i = 0; i < 1000; ++i) reported.Delay(100);
  int decisions = 0;
  while (control.lead().pushes_in_flight < 2) {
    reported.Delay(control.lead().waits ? 0 : 1);
    ASSERT_LT(++decisions, 50);
  }
}

// Both on two cores: a worker that works ahead beside one that waits made each step take a fifth more time.
TEST(LeadControl, AWorkerThatWasAloneWaitsAndMeasuresAgainOnceOthersCome) {
  LeadControl control(Bounds(2, 4, 2));
  Reported reported(&control);
  EXPECT_TRUE(reported.Delay(0));
  EXPECT_TRUE(reported.Delay(1));
  EXPECT_FALSE(reported.Delay(2.3, 0.2)) << "as good as alone";
  EXPECT_TRUE(reported.Delay(1.2, 0.6));
  EXPECT_EQ(control.lead(), kWaiting);
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(reported.Delay(1, 1));
  EXPECT_EQ(control.lead(), kWaiting);
}

TEST(LeadControl, OneThatHasMeasuredBesideOthersWorksAheadThoughTheyAreThere) {
  LeadControl control(Bounds(2, 4, 8));
  Reported reported(&control);
  EXPECT_TRUE(reported.Delay(1, 1));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(reported.Delay(3, 2)) << i;
  EXPECT_EQ(control.lead(), (Lead{2, 4}));
}

TEST(LeadControl, TriesALevelThatWasTooHighEverLessOften) {
  LeadControl control(Bounds(0, 1, 2));
  Reported reported(&control);
  std::vector<int> waited;
  for (int times = 0; times < 8; ++times) {
    int decisions = 1;
    while (!reported.Delay(0)) ++decisions;
    ASSERT_FALSE(control.lead().waits);
    waited.push_back(decisions);
    ASSERT_TRUE(reported.Delay(9));
    ASSERT_TRUE(control.lead().waits);
  }
  EXPECT_EQ(waited, (std::vector<int>{1, 2, 3, 5, 9, 17, 33, 65}));
  int decisions = 1;
  while (!reported.Delay(0)) ++decisions;
  EXPECT_EQ(decisions, 65) << "and no less than that";
}

TEST(LeadControl, StaysWithinTheConfiguredBounds) {
  LeadControl control(Bounds(1, 2, 100));
  Reported reported(&control);
  for (int i = 0; i < 50; ++i) reported.Delay(0);
  EXPECT_EQ(control.lead(), (Lead{1, 2}));
  EXPECT_TRUE(reported.Delay(201)) << "no level beyond the bounds has to be gone back";
  LeadControl no_batches(Bounds(0, 4, 100));
  Reported more(&no_batches);
  for (int i = 0; i < 50; ++i) more.Delay(0);
  EXPECT_EQ(no_batches.lead(), (Lead{0, 4}));
  LeadControl none(Bounds(0, 1, 100));
  Reported idle(&none);
  EXPECT_TRUE(idle.Delay(0)) << "it need not wait";
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(idle.Delay(0));
  EXPECT_EQ(none.lead(), (Lead{0, 1}));
}

TEST(LeadControl, DecidesAfterEnoughPushesOnly) {
  LeadControl control(Bounds(2, 4, 10));
  EXPECT_FALSE(control.Update(LeadControl::kPushesPerDecision - 1, 0, 0));
  EXPECT_TRUE(control.Update(LeadControl::kPushesPerDecision, 0, 0));
}

TEST(LeadControl, WaitsForEachPushIfNoDelayIsAllowed) {
  LeadControl control(Bounds(2, 4, 0));
  Reported reported(&control);
  EXPECT_FALSE(reported.Delay(0));
  EXPECT_EQ(control.lead(), kWaiting);
}

TEST(LeadControl, NeverWaitsWhereItMayNot) {
  LeadControl::Options options = Bounds(2, 4, 1);
  options.may_wait = false;
  LeadControl control(options);
  Reported reported(&control);
  EXPECT_EQ(control.lead(), (Lead{0, 1}));
  EXPECT_FALSE(reported.Delay(9));
  EXPECT_EQ(control.lead(), (Lead{0, 1}));
}

}  // namespace
}  // namespace lodestone::worker
