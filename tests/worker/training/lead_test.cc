#include "worker/training/lead.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

// Reports one decision's worth of pushes with this mean delay.
class Reported {
 public:
  explicit Reported(LeadControl* control) : control_(control) {}
  bool Delay(double mean) {
    pushes_ += LeadControl::kPushesPerDecision;
    sum_ += mean * LeadControl::kPushesPerDecision;
    return control_->Update(pushes_, sum_);
  }

 private:
  LeadControl* const control_;
  uint64_t pushes_ = 0;
  double sum_ = 0;
};

TEST(LeadControl, BeginsWithOnePushInFlightAndNothingAhead) {
  EXPECT_EQ(LeadControl(2, 4, 3).lead(), (Lead{.batches_ahead = 0, .pushes_in_flight = 1, .waits = false}));
}

TEST(LeadControl, AddsABatchThenAPushWhileThereIsRoomForMoreDelay) {
  LeadControl control(2, 4, 10);
  Reported reported(&control);
  const Lead expected[] = {{1, 1}, {1, 2}, {2, 2}, {2, 3}, {2, 4}};
  for (const Lead& lead : expected) {
    EXPECT_TRUE(reported.Delay(1));
    EXPECT_EQ(control.lead(), lead);
  }
}

TEST(LeadControl, GoesBackWhenTheDelayIsAboveWhatIsAllowed) {
  LeadControl control(2, 4, 3);
  Reported reported(&control);
  EXPECT_TRUE(reported.Delay(1));
  EXPECT_TRUE(reported.Delay(1.9));
  EXPECT_EQ(control.lead(), (Lead{1, 2}));
  EXPECT_FALSE(reported.Delay(2.5)) << "allowed, but with no room for more";
  EXPECT_TRUE(reported.Delay(3.5));
  EXPECT_TRUE(reported.Delay(3.5));
  EXPECT_EQ(control.lead(), (Lead{0, 1}));
  EXPECT_FALSE(reported.Delay(9)) << "what remains is others'";
  EXPECT_EQ(control.lead(), (Lead{0, 1}));
}

TEST(LeadControl, StaysWithinTheConfiguredBounds) {
  LeadControl control(1, 2, 100);
  Reported reported(&control);
  for (int i = 0; i < 50; ++i) reported.Delay(0);
  EXPECT_EQ(control.lead(), (Lead{1, 2}));
  EXPECT_TRUE(reported.Delay(200)) << "no level beyond the bounds has to be gone back";
  LeadControl no_batches(0, 4, 100);
  Reported more(&no_batches);
  for (int i = 0; i < 50; ++i) more.Delay(0);
  EXPECT_EQ(no_batches.lead(), (Lead{0, 4}));
  LeadControl none(0, 1, 100);
  Reported idle(&none);
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(idle.Delay(0));
  EXPECT_EQ(none.lead(), (Lead{0, 1}));
}

TEST(LeadControl, DecidesAfterEnoughPushesOnly) {
  LeadControl control(2, 4, 10);
  EXPECT_FALSE(control.Update(LeadControl::kPushesPerDecision - 1, 0));
  EXPECT_TRUE(control.Update(LeadControl::kPushesPerDecision, 0));
}

TEST(LeadControl, WaitsForEachPushIfNoDelayIsAllowed) {
  LeadControl control(2, 4, 0);
  EXPECT_TRUE(control.lead().waits);
  EXPECT_EQ(control.lead().batches_ahead, 0u);
  Reported reported(&control);
  EXPECT_FALSE(reported.Delay(0));
  EXPECT_TRUE(control.lead().waits);
}

}  // namespace
}  // namespace lodestone::worker
