#include "worker/capi/call.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/capi/wait_deadline.h"

namespace lodestone::worker {
namespace {

using ::testing::ElementsAre;

TEST(Call, AWaitThatIsTooShortSaysThatItGoesOn) {
  Call call;
  EXPECT_FALSE(call.Wait(0).has_value());
  call.Finish(absl::OkStatus(), {3, 4});
  EXPECT_EQ(call.Wait(0), absl::OkStatus());
  EXPECT_THAT(call.versions(), ElementsAre(3, 4));
}

TEST(Call, AWaitEndsWithTheCall) {
  for (const int64_t forever : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    Call call;
    std::thread other([&call] { call.Finish(absl::UnavailableError("gone"), {}); });
    EXPECT_EQ(call.Wait(forever), absl::UnavailableError("gone"));
    other.join();
  }
}

TEST(Call, AWaitOfMoreThanClocksCountHasNoEnd) {
  EXPECT_FALSE(WaitDeadline(std::numeric_limits<int64_t>::max()).has_value());
  EXPECT_FALSE(WaitDeadline(std::numeric_limits<int64_t>::max() / 1'000'000).has_value());
  EXPECT_TRUE(WaitDeadline(1'000'000).has_value());
}

TEST(Call, RowsOfKeysThatComeTwiceAreWrittenToEveryPlace) {
  Call call;
  std::vector<float> out(6, 0);
  auto rows = std::make_unique<RepeatedRows>();
  rows->dim = 2;
  rows->row = {1, 0, 1};
  rows->values = {1, 2, 3, 4};
  rows->destination = out.data();
  call.repeated.push_back(std::move(rows));
  call.Finish(absl::OkStatus(), {});
  EXPECT_THAT(out, ElementsAre(3, 4, 1, 2, 3, 4));
}

TEST(Call, TheFunctionRunsOnceBeforeOrAfterTheEnd) {
  int runs = 0;
  Call before;
  EXPECT_TRUE(before.OnDone([&runs] { ++runs; }).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(before.OnDone([] {})));
  EXPECT_EQ(runs, 0);
  before.Finish(absl::OkStatus(), {});
  EXPECT_EQ(runs, 1);
  Call after;
  after.Finish(absl::OkStatus(), {});
  EXPECT_TRUE(after.OnDone([&runs] { ++runs; }).ok());
  EXPECT_EQ(runs, 2);
}

TEST(Call, AFunctionThatIsForgottenDoesNotRunAnyMore) {
  Call call;
  EXPECT_TRUE(call.OnDone([] { FAIL() << "it was forgotten"; }).ok());
  call.ForgetOnDone();
  call.Finish(absl::OkStatus(), {});
}

TEST(Call, ForgettingWaitsForAFunctionThatRuns) {
  Call call;
  absl::Notification runs, may_end;
  bool ended = false;
  EXPECT_TRUE(call.OnDone([&] {
                    runs.Notify();
                    may_end.WaitForNotification();
                    ended = true;
                  })
                  .ok());
  std::thread finishes([&call] { call.Finish(absl::OkStatus(), {}); });
  runs.WaitForNotification();
  std::thread lets_end([&may_end] { may_end.Notify(); });
  call.ForgetOnDone();
  EXPECT_TRUE(ended);
  finishes.join();
  lets_end.join();
}

}  // namespace
}  // namespace lodestone::worker
