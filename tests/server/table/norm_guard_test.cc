#include "server/table/norm_guard.h"

#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

constexpr float kFactor = 10;

// A guard that has taken as many pushes as it needs, each of this mean square.
void Teach(NormGuard* guard, double mean_square) {
  for (uint64_t i = 0; i < NormGuard::kPushesUnjudged; ++i) {
    ASSERT_TRUE(guard->Judge("t", mean_square).ok());
    guard->Take(mean_square);
  }
}

TEST(NormGuardTest, TheFirstPushesAreNotJudged) {
  NormGuard guard(kFactor);
  for (uint64_t i = 0; i + 1 < NormGuard::kPushesUnjudged; ++i) guard.Take(1);
  EXPECT_TRUE(guard.Judge("t", 1e30).ok());
  guard.Take(1);
  EXPECT_EQ(guard.Judge("t", 1e30).code(), absl::StatusCode::kOutOfRange);
}

TEST(NormGuardTest, WhatIsFarLargerThanUsualIsRefusedAndTheErrorSaysByHowMuch) {
  NormGuard guard(kFactor);
  Teach(&guard, 4);  // A root mean square of 2.
  EXPECT_TRUE(guard.Judge("t", 4 * 99.9).ok());
  const absl::Status status = guard.Judge("embedding", 4 * 400.0);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(status.message(),
            "the gradients of table `embedding` have a root mean square of 40, 20 times the usual 2; "
            "guard.norm_max_factor allows 10 times");
}

TEST(NormGuardTest, ARefusedPushDoesNotChangeWhatIsUsual) {
  NormGuard guard(kFactor);
  Teach(&guard, 1);
  for (int i = 0; i < 1000; ++i) ASSERT_FALSE(guard.Judge("t", 101).ok());
}

TEST(NormGuardTest, WhatIsUsualFollowsGradientsThatGrowSlowly) {
  NormGuard guard(kFactor);
  Teach(&guard, 1);
  double mean_square = 1;
  for (int i = 0; i < 5000; ++i) {
    mean_square *= 1.01;
    ASSERT_TRUE(guard.Judge("t", mean_square).ok()) << i;
    guard.Take(mean_square);
  }
  EXPECT_GT(mean_square, 1e20);
}

TEST(NormGuardTest, AfterZerosOnlyNothingIsRefused) {
  NormGuard guard(kFactor);
  Teach(&guard, 0);
  EXPECT_TRUE(guard.Judge("t", 1).ok());
}

}  // namespace
}  // namespace lodestone::server
