#include "tools/bench/harness/stats.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone::bench {
namespace {

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

}  // namespace
}  // namespace lodestone::bench
