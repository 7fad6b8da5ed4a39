#include "worker/metrics/delay_counts.h"

#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

TEST(DelayCounts, HasMeanQuantilesAndMaximum) {
  DelayCounts counts;
  for (int i = 0; i < 8; ++i) counts.Add(/*own=*/1, /*others=*/0);
  counts.Add(1, 2);
  counts.Add(1, 8);
  const DelaySummary summary = counts.Summarize("bias");
  EXPECT_EQ(summary.table, "bias");
  EXPECT_EQ(summary.pushes, 10u);
  EXPECT_DOUBLE_EQ(summary.mean, (8 * 1 + 3 + 9) / 10.0);
  EXPECT_DOUBLE_EQ(summary.own, 1);
  EXPECT_EQ(summary.p50, 1u);
  EXPECT_EQ(summary.p90, 3u) << "nine of ten had 3 or less";
  EXPECT_EQ(summary.max, 9u);
}

TEST(DelayCounts, RoundsMeansOverShards) {
  DelayCounts counts;
  counts.Add(0.3, 0.3);
  EXPECT_EQ(counts.Quantile(1), 1u);
  EXPECT_DOUBLE_EQ(counts.all_sum(), 0.6);
}

TEST(DelayCounts, IsZeroWithoutPushes) {
  const DelaySummary summary = DelayCounts().Summarize("bias");
  EXPECT_EQ(summary.pushes, 0u);
  EXPECT_EQ(summary.mean, 0);
  EXPECT_EQ(summary.p90, 0u);
}

TEST(DelayCounts, KeepsTheMaximumBeyondWhatItCounts) {
  DelayCounts counts;
  counts.Add(0, 1e9);
  EXPECT_EQ(counts.Quantile(0.5), DelayCounts::kDelayMax);
  EXPECT_EQ(counts.Summarize("bias").max, 1'000'000'000u);
}

}  // namespace
}  // namespace lodestone::worker
