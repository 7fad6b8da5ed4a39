#include "server/shard/row_index.h"

#include <random>
#include <unordered_map>
#include <vector>

#include "gtest/gtest.h"

namespace lodestone {
namespace {

// An index together with the keys that a table would hold.
class IndexedKeys {
 public:
  auto KeyOf() const {
    return [this](RowId row) { return keys_[row]; };
  }
  RowId Find(Key key) const { return index_.Find(key, index_.Prepare(key), KeyOf()); }
  void Insert(Key key, RowId row) {
    if (keys_.size() <= row) keys_.resize(row + 1);
    keys_[row] = key;
    live_[key] = row;
    if (index_.full()) {
      index_.Grow();
      for (const auto& [k, r] : live_) {
        if (k != key) index_.Insert(k, r);
      }
    }
    index_.Insert(key, row);
  }
  void Erase(Key key) {
    index_.Erase(key, live_.at(key), KeyOf());
    live_.erase(key);
  }
  const std::unordered_map<Key, RowId>& live() const { return live_; }
  size_t size() const { return index_.size(); }
  size_t bytes() const { return index_.bytes(); }

 private:
  RowIndex index_;
  std::vector<Key> keys_;
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
  index.Insert(UINT64_MAX, 1);
  EXPECT_EQ(index.Find(0), 0u);
  EXPECT_EQ(index.Find(UINT64_MAX), 1u);
  EXPECT_EQ(index.Find(1), kNoRow);
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

TEST(RowIndex, TakesLessThanNineBytesPerKeyAtAnySizeAboveAThousand) {
  IndexedKeys index;
  for (Key key = 0; key < 20'000; ++key) {
    index.Insert(key, static_cast<RowId>(key));
    if (key >= 1000) {
      ASSERT_LT(static_cast<double>(index.bytes()) / static_cast<double>(index.size()), 9.0) << key;
    }
  }
}

}  // namespace
}  // namespace lodestone
