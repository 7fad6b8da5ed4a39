#include "server/table/row_index.h"

#include <algorithm>
#include <random>
#include <unordered_map>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

// An index beside a map that says what it should hold.
class IndexedKeys {
 public:
  RowId Find(Key key) const {
    const RowId row = index_.Find(key);
    const RowId moved = index_.FindMoved(key, index_.Prepare(key));
    EXPECT_EQ(row, moved == kNoRow ? index_.FindUnmoved(key) : moved);
    return row;
  }
  void Insert(Key key, RowId row) {
    live_[key] = row;
    if (index_.full()) index_.Grow();
    index_.Insert(key, row);
  }
  void Erase(Key key) {
    index_.Erase(key);
    live_.erase(key);
  }
  const std::unordered_map<Key, RowId>& live() const { return live_; }
  size_t size() const { return index_.size(); }
  size_t bytes() const { return index_.bytes(); }

 private:
  RowIndex index_;
  std::unordered_map<Key, RowId> live_;
};

TEST(RowIndex, FindsNothingWhenEmpty) {
  IndexedKeys index;
  EXPECT_EQ(index.Find(0), kNoRow);
  EXPECT_EQ(index.Find(UINT64_MAX), kNoRow);
}

TEST(RowIndex, HoldsTheExtremeKeys) {
  IndexedKeys index;
  index.Insert(0, 0);
  index.Insert(UINT64_MAX, kNoRow - 1);  // The largest row, too.
  EXPECT_EQ(index.Find(0), 0u);
  EXPECT_EQ(index.Find(UINT64_MAX), kNoRow - 1);
  EXPECT_EQ(index.Find(1), kNoRow);
  index.Erase(0);
  EXPECT_EQ(index.Find(0), kNoRow);
}

TEST(RowIndex, AgreesWithAMapOverRandomInsertionsAndErasures) {
  constexpr unsigned kSeed = 7;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  IndexedKeys index;
  std::vector<Key> known;
  RowId next_row = 0;
  for (int i = 0; i < 50'000; ++i) {
    const Key key = random() % 4096;  // Small and consecutive: clusters, wraps, and many erasures.
    if (index.live().contains(key)) {
      ASSERT_EQ(index.Find(key), index.live().at(key));
      if (random() % 2 == 0) index.Erase(key);
    } else {
      ASSERT_EQ(index.Find(key), kNoRow);
      index.Insert(key, next_row++);
    }
    ASSERT_EQ(index.size(), index.live().size());
  }
  for (Key key = 0; key < 4096; ++key) {
    const auto live = index.live().find(key);
    EXPECT_EQ(index.Find(key), live == index.live().end() ? kNoRow : live->second) << key;
  }
}

TEST(RowIndex, AgreesWithAMapThatOnlyShrinksFromAsFullAsItGets) {
  constexpr unsigned kSeed = 8;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 20; ++round) {
    IndexedKeys index;
    std::vector<Key> keys;
    const size_t count = 10 + random() % 300;  // Few buckets: long runs of full ones, across the end too.
    for (size_t i = 0; i < count; ++i) {
      keys.push_back(random());
      index.Insert(keys.back(), static_cast<RowId>(i));
    }
    std::shuffle(keys.begin(), keys.end(), random);
    for (const Key erased : keys) {
      index.Erase(erased);
      for (const Key key : keys) {
        const auto live = index.live().find(key);
        ASSERT_EQ(index.Find(key), live == index.live().end() ? kNoRow : live->second) << key;
      }
    }
    EXPECT_EQ(index.size(), 0u);
  }
}

TEST(RowIndex, HoldsAsManyKeysAsWereReservedWithoutGrowing) {
  for (const size_t keys : {0, 1, 15, 16, 1000, 12'345}) {
    RowIndex index;
    index.Reserve(keys);
    const size_t capacity = index.capacity();
    for (Key key = 1; key <= keys; ++key) {
      ASSERT_FALSE(index.full()) << key << " of " << keys;
      index.Insert(key * 977, static_cast<RowId>(key));
    }
    EXPECT_EQ(index.capacity(), capacity);
    for (Key key = 1; key <= keys; ++key) ASSERT_EQ(index.Find(key * 977), static_cast<RowId>(key));
    EXPECT_EQ(index.Find(976), kNoRow);
  }
}

TEST(RowIndex, TakesAtMostTwentyTwoBytesPerKeyAtAnySizeAboveAThousandAndFortyWhileItGrows) {
  // 12.8 bytes per slot; three quarters of them are taken before it grows by a quarter.
  IndexedKeys index;
  uint64_t above = 0;
  for (Key key = 0; key < 200'000; ++key) {
    index.Insert(key, static_cast<RowId>(key));
    if (key < 1000) continue;
    const double bytes_per_key = static_cast<double>(index.bytes()) / static_cast<double>(index.size());
    ASSERT_LT(bytes_per_key, 40.0) << key;
    above += bytes_per_key >= 22;
  }
  EXPECT_LT(above, 200'000 / 5) << "it does not grow for long";
}

TEST(RowIndex, AgreesWithAMapWhileALargeOneGrows) {
  constexpr unsigned kSeed = 9;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  IndexedKeys index;
  RowId next_row = 0;
  for (int i = 0; i < 300'000; ++i) {
    const Key key = random() % 60'000;
    if (!index.live().contains(key)) {
      ASSERT_EQ(index.Find(key), kNoRow) << key << ", step " << i;
      index.Insert(key, next_row++);
    } else {
      ASSERT_EQ(index.Find(key), index.live().at(key)) << key << ", step " << i;
      if (random() % 3 == 0) index.Erase(key);
    }
    ASSERT_EQ(index.size(), index.live().size());
  }
  for (Key key = 0; key < 60'000; ++key) {
    const auto live = index.live().find(key);
    ASSERT_EQ(index.Find(key), live == index.live().end() ? kNoRow : live->second) << key;
  }
}

// A growth once moved all keys in one insertion: 6 to 41 ms for those of a shard of 100 million rows (index_benchmark).
TEST(RowIndex, ALargeOneGrowsInManySmallSteps) {
  RowIndex index;
  Key key = 0;
  const auto insert = [&] {
    ++key;
    index.Insert(key, static_cast<RowId>(key));
  };
  while (index.capacity() < 100'000 || !index.full()) {
    if (index.full()) index.Grow();
    insert();
  }
  const size_t former = index.bytes(), capacity = index.capacity(), wanted = index.BytesWith(index.size() + 1);
  index.Grow();
  EXPECT_GT(index.capacity(), capacity);
  const size_t both = index.bytes();
  EXPECT_EQ(both, wanted);
  EXPECT_GT(both, 2 * former);
  int steps = 0;
  for (; index.bytes() == both; ++steps) {
    ASSERT_FALSE(index.full()) << "it must have moved all before the next growth";
    insert();
  }
  EXPECT_GT(steps, 2000) << "each moves few keys";
  EXPECT_EQ(index.bytes(), both - former);
  for (Key known = 1; known <= key; ++known) ASSERT_EQ(index.Find(known), static_cast<RowId>(known));
}

TEST(RowIndex, MayGrowAgainAndBeEmptiedWhileItGrows) {
  RowIndex index;
  for (Key key = 1; key <= 20'000; ++key) {
    if (index.full()) index.Grow();
    index.Insert(key, static_cast<RowId>(key));
  }
  index.Grow();
  index.Grow();
  for (Key key = 1; key <= 20'000; ++key) {
    ASSERT_EQ(index.Find(key), static_cast<RowId>(key));
    index.Erase(key);
    ASSERT_EQ(index.Find(key), kNoRow);
  }
  EXPECT_EQ(index.size(), 0u);
  index.Reserve(50'000);
  for (Key key = 1; key <= 50'000; ++key) {
    ASSERT_FALSE(index.full());
    index.Insert(key, static_cast<RowId>(key + 1));
    ASSERT_EQ(index.Find(key), static_cast<RowId>(key + 1));
  }
}

}  // namespace
}  // namespace lodestone::server
