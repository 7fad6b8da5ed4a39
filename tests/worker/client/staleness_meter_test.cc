#include "worker/client/staleness_meter.h"

#include <vector>

#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

using Applied = std::vector<StalenessMeter::Applied>;
using Versions = std::vector<Version>;

TEST(StalenessMeter, CountsWhatOthersDidBetweenReadingAndPush) {
  StalenessMeter meter(4);
  meter.Record(0, 15);
  meter.Record(1, 21);
  // Shard 0: versions 11 … 15 of which one is ours; shard 1: 21, ours.
  EXPECT_EQ(meter.Measure(Applied{{0, 15}, {1, 21}}, Versions{10, 20, 0, 0}), (4 + 0) / 2.0);
}

TEST(StalenessMeter, DoesNotCountOurOwnPushesInBetween) {
  StalenessMeter meter(1);
  for (Version version : {12, 11, 14, 14}) meter.Record(0, version);
  EXPECT_EQ(meter.Measure(Applied{{0, 14}}, Versions{10}), 1);  // Only 13 was another's.
}

TEST(StalenessMeter, LeavesOutShardsThatWereNotRead) {
  StalenessMeter meter(2);
  meter.Record(0, 5);
  meter.Record(1, 9);
  EXPECT_EQ(meter.Measure(Applied{{0, 5}, {1, 9}}, Versions{0, 6}), 2);
  EXPECT_EQ(meter.Measure(Applied{{0, 5}}, Versions{}), 0);
}

TEST(StalenessMeter, IsNeverNegative) {
  StalenessMeter meter(1);
  EXPECT_EQ(meter.Measure(Applied{{0, 5}}, Versions{9}), 0);  // The answer to a duplicate may be older than a reading.
}

TEST(StalenessMeter, ForgetsOnlyTheOldestOfManyPushes) {
  StalenessMeter meter(1);
  for (Version version = 2; version <= 200'000; version += 2) meter.Record(0, version);
  EXPECT_EQ(meter.Measure(Applied{{0, 200'000}}, Versions{199'000}), 500);
}

}  // namespace
}  // namespace lodestone::worker
