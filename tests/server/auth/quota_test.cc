#include "server/auth/quota.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using ::testing::HasSubstr;

v1::Identity IdentityOf(uint64_t bytes_per_second, uint64_t pushes_per_second) {
  v1::Identity identity;
  identity.set_name("alice");
  identity.set_push_bytes_per_second_max(bytes_per_second);
  identity.set_pushes_per_second_max(pushes_per_second);
  return identity;
}

TEST(Quota, WithoutLimitsEverythingIsTakenAtOnce) {
  ManualTime time;
  Quota quota(IdentityOf(0, 0), &time);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(*quota.Take(uint64_t{1} << 40), 0);
}

TEST(Quota, ASecondsWorthIsTakenAtOnceTheNextIsWaitedForAndMoreIsRefused) {
  ManualTime time;
  Quota quota(IdentityOf(0, 10), &time);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(*quota.Take(1), 0) << i;
  // Each owes another tenth of a second.
  for (int i = 1; i <= 10; ++i) EXPECT_EQ(*quota.Take(1), 100 * i) << i;
  // A second ahead: the last that is taken, and its wait is no longer than that.
  EXPECT_EQ(*quota.Take(1), kQuotaDelayMsMax);
  const auto refused = quota.Take(1);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.status().message(),
            "`alice` has pushed 1100 ms ahead of its pushes_per_second_max of 10 on this ps; try again later");
  // What was refused was not taken.
  time.AdvanceMs(100);
  EXPECT_TRUE(quota.Take(1).ok());
  EXPECT_FALSE(quota.Take(1).ok());
}

TEST(Quota, NoMoreThanASecondsWorthIsSavedUp) {
  ManualTime time;
  Quota quota(IdentityOf(0, 10), &time);
  time.AdvanceMs(3'600'000);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(*quota.Take(1), 0) << i;
  EXPECT_EQ(*quota.Take(1), 100);
}

TEST(Quota, BytesCountAsWellAsPushesAndAPushMayBeLargerThanASecondsWorth) {
  ManualTime time;
  Quota quota(IdentityOf(1000, 1'000'000), &time);
  EXPECT_EQ(*quota.Take(400), 0);
  EXPECT_EQ(*quota.Take(100'000), kQuotaDelayMsMax) << "otherwise it could never be pushed";
  EXPECT_THAT(std::string(quota.Take(1).status().message()), HasSubstr("push_bytes_per_second_max of 1000"));
  time.AdvanceMs(98'400);
  EXPECT_EQ(*quota.Take(1), kQuotaDelayMsMax);
}

TEST(Quota, OverTimeNoMoreIsTakenThanTheRateAllows) {
  ManualTime time;
  Quota quota(IdentityOf(0, 50), &time);
  int taken = 0;
  for (int ms = 0; ms < 20'000; ++ms) {
    while (quota.Take(1).ok()) ++taken;  // As fast as it can.
    time.AdvanceMs(1);
  }
  // 20 seconds, one that was saved up, and one ahead.
  EXPECT_NEAR(taken, 22 * 50, 2);
}

}  // namespace
}  // namespace lodestone::server
