#include "worker/client/delay_meter.h"

#include <vector>

#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

using Applied = std::vector<DelayMeter::Applied>;
using Shards = std::vector<ShardId>;
using Versions = std::vector<Version>;

TEST(DelayMeter, CountsWhatCameBetweenReadingAndPush) {
  DelayMeter meter(4);
  meter.Record(0, 15);
  meter.Record(1, 21);
  // Shard 0: versions 11 ... 14 came before 15, which is the push itself; shard 1: nothing before 21.
  const auto delay = meter.Measure(Shards{0, 1}, Applied{{0, 15}, {1, 21}}, Versions{10, 20, 0, 0});
  ASSERT_TRUE(delay.has_value());
  EXPECT_EQ(delay->others, (4 + 0) / 2.0);
  EXPECT_EQ(delay->own, 0);
}

TEST(DelayMeter, TellsOwnPushesFromOthers) {
  DelayMeter meter(1);
  for (Version version : {12, 11, 14, 14}) meter.Record(0, version);
  const auto delay = meter.Measure(Shards{0}, Applied{{0, 14}}, Versions{10});
  ASSERT_TRUE(delay.has_value());
  EXPECT_EQ(delay->own, 2);     // 11 and 12.
  EXPECT_EQ(delay->others, 1);  // 13.
}

TEST(DelayMeter, TheMessagesOfOnePushAreNoDelayToEachOther) {
  DelayMeter meter(1);
  for (Version version : {11, 12, 14}) meter.Record(0, version);
  const auto delay = meter.Measure(Shards{0}, Applied{{0, 14, 3}}, Versions{10});
  ASSERT_TRUE(delay.has_value());
  EXPECT_EQ(delay->own, 0);
  EXPECT_EQ(delay->others, 1);  // 13.
}

TEST(DelayMeter, LooksAtTheShardsThatItIsAskedAboutOnly) {
  DelayMeter meter(3);
  meter.Record(0, 5);
  meter.Record(1, 9);
  meter.Record(2, 100);
  const Applied applied = {{0, 5}, {1, 9}, {2, 100}};
  EXPECT_EQ(meter.Measure(Shards{1}, applied, Versions{1, 6, 1})->others, 2);
  EXPECT_EQ(meter.Measure(Shards{0, 1}, applied, Versions{0, 6, 1})->others, 2) << "shard 0 was not read";
  EXPECT_FALSE(meter.Measure(Shards{0}, applied, Versions{}).has_value());
  EXPECT_FALSE(meter.Measure(Shards{}, applied, Versions{1, 1, 1}).has_value());
  EXPECT_FALSE(meter.Measure(Shards{1}, Applied{{0, 5}}, Versions{1, 1, 1}).has_value()) << "not applied there";
}

TEST(DelayMeter, IsNeverNegative) {
  DelayMeter meter(1);
  // The answer to a duplicate may be older than a reading.
  const auto delay = meter.Measure(Shards{0}, Applied{{0, 5}}, Versions{9});
  ASSERT_TRUE(delay.has_value());
  EXPECT_EQ(delay->own, 0);
  EXPECT_EQ(delay->others, 0);
}

TEST(DelayMeter, ForgetsOnlyTheOldestOfManyPushes) {
  DelayMeter meter(1);
  for (Version version = 2; version <= 200'000; version += 2) meter.Record(0, version);
  const auto delay = meter.Measure(Shards{0}, Applied{{0, 200'000}}, Versions{199'000});
  ASSERT_TRUE(delay.has_value());
  EXPECT_EQ(delay->others, 500);
  EXPECT_EQ(delay->own, 499);
}

}  // namespace
}  // namespace lodestone::worker
