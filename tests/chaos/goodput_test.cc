#include "tests/chaos/goodput.h"

#include "gtest/gtest.h"

namespace lodestone::chaos {
namespace {

TEST(Goodput, IsTheRateWithAFaultBesideTheMeanOfTheRatesAroundIt) {
  const GoodputPeriod slow{.seconds = 10, .pushes = 1000}, fast{.seconds = 10, .pushes = 3000};
  // At 200 a second it would have had 2000: 200 are missing, 150 of them in the second of its recovery.
  const GoodputPeriod fault{.seconds = 10, .pushes = 1800, .recovery_seconds = 1, .recovery_pushes = 50};
  const GoodputShares shares = ComputeShares(slow, fault, fast);
  EXPECT_DOUBLE_EQ(shares.goodput, 0.9);
  EXPECT_DOUBLE_EQ(shares.lost_in_recovery, 0.075);
  EXPECT_DOUBLE_EQ(shares.lost_after, 0.025);
}

TEST(Goodput, ComparesEachFaultWithItsOwnNeighbours) {
  const GoodputPeriod calm{.seconds = 5, .pushes = 500}, later{.seconds = 5, .pushes = 1500};
  const GoodputPeriod fault{.seconds = 5, .pushes = 400};
  const auto shares = ComputeShares({calm, fault, calm, fault, later});
  ASSERT_EQ(shares.size(), 2);
  EXPECT_DOUBLE_EQ(shares[0].goodput, 0.8);
  EXPECT_DOUBLE_EQ(shares[1].goodput, 0.4);
}

TEST(Goodput, IsNotKnownWhereNothingWasAcknowledgedOrTheRunEnded) {
  const GoodputPeriod none{.seconds = 5}, fault{.seconds = 5, .pushes = 10};
  EXPECT_TRUE(ComputeShares({none, fault, none}).empty());
  EXPECT_TRUE(ComputeShares({fault, fault}).empty());
  EXPECT_TRUE(ComputeShares({}).empty());
}

}  // namespace
}  // namespace lodestone::chaos
