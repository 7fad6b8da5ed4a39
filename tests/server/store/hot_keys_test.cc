#include "server/store/hot_keys.h"

#include <cstdint>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kBeginMs = 1000;
constexpr int64_t kJudgedMs = 11'000;  // The window is over.

class HotKeysTest : public testing::Test {
 protected:
  HotKeysTest() { std::printf("seed %llu\n", static_cast<unsigned long long>(kSeed)); }

  void Count(ShardId shard, const std::vector<Key>& keys) {
    hot_keys_.Count(shard, /*table=*/5, ByteView(reinterpret_cast<const uint8_t*>(keys.data()), keys.size() * 8),
                    keys.size());
  }
  // So many batches, of keys of which a part is `key`, and the others come once.
  void CountMany(ShardId shard, Key key, double part, int batches, size_t batch) {
    for (int i = 0; i < batches; ++i) {
      std::vector<Key> keys;
      while (keys.size() < batch) {
        keys.push_back(std::uniform_real_distribution<double>(0, 1)(random_) < part ? key : Mix64(++others_));
      }
      Count(shard, keys);
    }
  }
  std::vector<v1::HotKey> Told() const {
    v1::StatusResponse status;
    hot_keys_.FillStatus([](TableId table) { return table == 5 ? "emb" : ""; }, &status);
    return {status.hot_keys().begin(), status.hot_keys().end()};
  }

  static constexpr uint64_t kSeed = 20261126;
  std::mt19937_64 random_{kSeed};
  uint64_t others_ = 0;
  HotKeys hot_keys_{4};
};

TEST_F(HotKeysTest, AKeyThatComesMuchMoreThanOthersIsToldWithItsRate) {
  CountMany(1, 42, 0.3, 1, 1);
  hot_keys_.Measure(1, kBeginMs);
  CountMany(1, 42, 0.3, 2000, 100);
  hot_keys_.Measure(1, kJudgedMs - 1);
  EXPECT_THAT(Told(), IsEmpty()) << "the window is not over";
  hot_keys_.Measure(1, kJudgedMs);
  const std::vector<v1::HotKey> told = Told();
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0].table(), "emb");
  EXPECT_EQ(told[0].key(), 42);
  EXPECT_EQ(told[0].shard(), 1);
  // About 390 samples: three standard deviations are 0.07, and the sketch may hide 1 / 32.
  EXPECT_NEAR(told[0].share(), 0.3, 0.102);
  EXPECT_NEAR(told[0].per_second(), 6000, 0.102 / 0.3 * 6000);
}

TEST_F(HotKeysTest, BatchesOfOneLengthHideNoKeyAndFavourNone) {
  std::vector<Key> keys;
  for (Key key = 0; key < 256; ++key) keys.push_back(key);
  hot_keys_.Measure(0, kBeginMs);
  for (int i = 0; i < 1000; ++i) Count(0, keys);
  hot_keys_.Measure(0, kBeginMs);
  hot_keys_.Measure(0, kJudgedMs);
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(HotKeysTest, AFewSamplesSayNothing) {
  CountMany(1, 42, 1, 100, 100);
  hot_keys_.Measure(1, kBeginMs);
  hot_keys_.Measure(1, kJudgedMs);
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(HotKeysTest, AKeyThatIsNotHotAnyMoreOrWhoseShardHasGoneIsForgotten) {
  for (const ShardId shard : {1u, 2u}) {
    CountMany(shard, 42, 0.5, 2000, 100);
    hot_keys_.Measure(shard, kBeginMs);
    hot_keys_.Measure(shard, kJudgedMs);
  }
  EXPECT_THAT(Told(), SizeIs(2));
  const std::vector<ShardId> owned = {0, 1, 3};
  hot_keys_.Keep(owned);
  EXPECT_THAT(Told(), SizeIs(1));
  CountMany(1, 42, 0, 2000, 100);
  hot_keys_.Measure(1, 2 * kJudgedMs);
  EXPECT_THAT(Told(), IsEmpty());
}

TEST_F(HotKeysTest, WhatCameBeforeAShardWasAwayCountsNoMore) {
  constexpr int64_t kBackMs = kBeginMs + 130'000;
  CountMany(1, 42, 0.5, 2000, 100);
  hot_keys_.Measure(1, kBeginMs);  // Then another ps owns it.
  CountMany(1, 42, 0, 100, 100);
  hot_keys_.Measure(1, kBackMs);
  EXPECT_THAT(Told(), IsEmpty());
  CountMany(1, 42, 0, 2000, 100);
  hot_keys_.Measure(1, kBackMs + kJudgedMs);
  EXPECT_THAT(Told(), IsEmpty());
}

TEST(KeySketch, CountsFewKeysExactly) {
  KeySketch sketch;
  for (int i = 0; i < 10; ++i) {
    for (Key key = 0; key <= static_cast<Key>(i); ++key) sketch.Add(1, key);
  }
  sketch.Add(2, 0);  // Another table's.
  const std::vector<KeySketch::Frequent> frequent = sketch.AtLeast(9);
  ASSERT_THAT(frequent, SizeIs(2));
  EXPECT_EQ(frequent[0].key, 0);
  EXPECT_EQ(frequent[0].count, 10);
  EXPECT_EQ(frequent[1].key, 1);
  EXPECT_EQ(sketch.total(), 56);
}

// Whatever comes beside it and in what order, a key with an eighth of the stream has a counter, and no count is too
// high.
TEST(KeySketch, FindsAFrequentKeyAmongAnyOthersAndCountsNoneTooHigh) {
  const uint64_t seed = 4711;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 50; ++round) {
    KeySketch sketch;
    std::map<Key, uint64_t> counts;
    const uint64_t others = uint64_t{1} << (1 + round % 20);
    for (int i = 0; i < 4000; ++i) {
      const Key key = random() % 8 == 0 ? 0 : 1 + random() % others;
      ++counts[key];
      sketch.Add(1, key);
    }
    bool found = false;
    for (const KeySketch::Frequent& frequent : sketch.AtLeast(1)) {
      found = found || frequent.key == 0;
      EXPECT_LE(frequent.count, counts[frequent.key]);
      if (frequent.key != 0) continue;
      EXPECT_GE(frequent.count + 4000 / KeySketch::kCounters, counts[0]);
    }
    EXPECT_TRUE(found) << "round " << round;
  }
}

}  // namespace
}  // namespace lodestone::server
