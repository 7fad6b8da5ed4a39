#include "tools/bench/harness/stats.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone::bench {
namespace {

TEST(SpreadOf, TakesTheMiddleOfAnOddNumberOfValues) {
  const Spread spread = SpreadOf({9, 1, 4, 7, 2});
  EXPECT_EQ(spread.median, 4);
  EXPECT_EQ(spread.min, 1);
  EXPECT_EQ(spread.max, 9);
}

TEST(SpreadOf, TakesTheMeanOfTheTwoMiddleOnesOfAnEvenNumber) {
  EXPECT_EQ(SpreadOf({8, 2, 4, 100}).median, 6);
  EXPECT_EQ(SpreadOf({3, 1}).median, 2);
}

TEST(SpreadOf, OfOneValueIsThatValue) {
  const Spread spread = SpreadOf({5});
  EXPECT_EQ(spread.median, 5);
  EXPECT_EQ(spread.min, 5);
  EXPECT_EQ(spread.max, 5);
}

TEST(Percentile, IsTheNearestRank) {
  std::vector<float> values(1000);
  std::iota(values.rbegin(), values.rend(), 1.0f);  // 1000 … 1
  EXPECT_EQ(Percentile(&values, 50), 500);
  EXPECT_EQ(Percentile(&values, 99), 990);
  EXPECT_EQ(Percentile(&values, 99.9), 999);
  EXPECT_EQ(Percentile(&values, 100), 1000);
  EXPECT_EQ(Percentile(&values, 0.01), 1);
}

TEST(Percentile, OfFewValuesIsOneOfThem) {
  std::vector<float> values = {30, 10, 20};
  EXPECT_EQ(Percentile(&values, 50), 20);
  EXPECT_EQ(Percentile(&values, 99.9), 30);
  EXPECT_EQ(Percentile(&values, 33), 10);
  EXPECT_EQ(Percentile(&values, 34), 20);
}

TEST(SizeText, UsesTheLargestUnitThatDivides) {
  EXPECT_EQ(SizeText(64), "64B");
  EXPECT_EQ(SizeText(4096), "4KiB");
  EXPECT_EQ(SizeText(1 << 20), "1MiB");
  EXPECT_EQ(SizeText(64 << 20), "64MiB");
  EXPECT_EQ(SizeText(1025), "1025B");
  EXPECT_EQ(SizeText(0), "0B");
}

TEST(NumberText, HasThreeSignificantDigits) {
  EXPECT_EQ(NumberText(0), "0");
  EXPECT_EQ(NumberText(0.04567), "0.0457");
  EXPECT_EQ(NumberText(4.054), "4.05");
  EXPECT_EQ(NumberText(16.44), "16.4");
  EXPECT_EQ(NumberText(135.2), "135");
  EXPECT_EQ(NumberText(2870.4), "2870");
  EXPECT_EQ(NumberText(-1.5), "-1.50");
}

}  // namespace
}  // namespace lodestone::bench
