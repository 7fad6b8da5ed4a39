#include "worker/capi/row_copy.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/wire/shard_map.h"
#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

constexpr uint32_t kCopiedShards = 4;
constexpr size_t kCopiedDim = 2;

class RowCopyTest : public ::testing::Test {
 protected:
  RowCopyTest() {
    table_.id = TableIdOf("rows");
    table_.spec.set_name("rows");
    table_.spec.mutable_embedding()->set_dim(kCopiedDim);
    table_.dim = kCopiedDim;
    // Two of one shard, one of another.
    for (Key key = 0; keys_.size() < 3; ++key) {
      const ShardId shard = ShardOfKey(key, kCopiedShards);
      if ((keys_.size() < 2) == (shard == ShardOfKey(0, kCopiedShards))) keys_.push_back(key);
    }
    copy_ = std::make_unique<RowCopy>(table_, std::vector<Key>{keys_[0], keys_[1], keys_[2], keys_[0]}, kCopiedShards);
  }

  ShardId ShardOf(size_t key) const { return ShardOfKey(keys_[key], kCopiedShards); }

  // A change of the shard of the first key, or of the last: rows as first elements by key, and keys that are gone.
  void Change(ShardId shard, Version version, const std::vector<std::pair<Key, float>>& rows,
              const std::vector<Key>& evicted = {}, bool anchor = false) {
    if (anchor) copy_->OnAnchor(shard);
    Tell(shard, rows, evicted);
    copy_->OnShard(shard, version);
  }
  void Tell(ShardId shard, const std::vector<std::pair<Key, float>>& rows, const std::vector<Key>& evicted = {}) {
    std::vector<Key> keys;
    std::vector<float> values;
    for (const auto& [key, value] : rows) {
      keys.push_back(key);
      values.insert(values.end(), {value, -value});
    }
    RowsOfShard update{.table = table_.id, .shard = shard, .evicted_count = evicted.size(), .count = rows.size()};
    update.evicted = ByteView(reinterpret_cast<const uint8_t*>(evicted.data()), evicted.size() * sizeof(Key));
    update.keys = ByteView(reinterpret_cast<const uint8_t*>(keys.data()), keys.size() * sizeof(Key));
    update.values = ByteView(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float));
    copy_->OnRows(update);
  }
  // The first elements; what is not copied is 99, and what is not there -1.
  std::vector<float> Firsts(uint64_t since = 0) {
    std::vector<float> values(4 * kCopiedDim, 99), firsts;
    std::vector<uint8_t> present(4, 7);
    EXPECT_TRUE(copy_->Copy(values.data(), present.data(), since, &stamp_, &versions_).ok());
    for (size_t i = 0; i < present.size(); ++i) {
      if (values[2 * i] != 99) {
        EXPECT_EQ(values[2 * i + 1], -values[2 * i]);
      }
      firsts.push_back(present[i] == 1 ? values[2 * i] : -1);
      if (present[i] == 0) {
        EXPECT_EQ(values[2 * i], 99) << "nothing is written where there is no row";
      }
    }
    return firsts;
  }

  TableHandle table_;
  std::vector<Key> keys_;
  std::unique_ptr<RowCopy> copy_;
  uint64_t stamp_ = 0;
  ShardVersions versions_;
};

TEST_F(RowCopyTest, IsCompleteOnceEachShardOfItsKeysHasCome) {
  EXPECT_EQ(copy_->Wait(0, 0), 0u);
  Change(ShardOf(0), 3, {{keys_[0], 10}}, {}, /*anchor=*/true);
  EXPECT_EQ(copy_->Wait(0, 0), 0u);
  std::vector<float> values(8);
  std::vector<uint8_t> present(4);
  EXPECT_EQ(copy_->Copy(values.data(), present.data(), 0, &stamp_, nullptr).code(), absl::StatusCode::kUnavailable);
  Change(ShardOf(2), 5, {}, {}, /*anchor=*/true);
  EXPECT_GT(copy_->Wait(0, 0), 0u);
  EXPECT_EQ(Firsts(), (std::vector<float>{10, -1, -1, 10}));
  EXPECT_EQ(versions_[ShardOf(0)], 3u);
  EXPECT_EQ(versions_[ShardOf(2)], 5u);
}

TEST_F(RowCopyTest, CopiesWhatHasChangedSinceAStamp) {
  Change(ShardOf(0), 3, {{keys_[0], 10}, {keys_[1], 20}}, {}, true);
  Change(ShardOf(2), 3, {{keys_[2], 30}}, {}, true);
  EXPECT_EQ(Firsts(), (std::vector<float>{10, 20, 30, 10}));
  const uint64_t before = stamp_;
  Change(ShardOf(0), 4, {{keys_[1], 21}});
  EXPECT_GT(copy_->Wait(before, 0), before);
  EXPECT_EQ(Firsts(before), (std::vector<float>{99, 21, 99, 99}));
  EXPECT_EQ(versions_[ShardOf(0)], 4u);
}

TEST_F(RowCopyTest, RowsOfOtherKeysAreNoNews) {
  Change(ShardOf(0), 3, {{keys_[0], 10}}, {}, true);
  Change(ShardOf(2), 3, {}, {}, true);
  Firsts();
  Change(ShardOf(0), 4, {{1'000'000, 1}}, {2'000'000});
  EXPECT_EQ(copy_->Wait(stamp_, 0), stamp_) << "nothing to wake for";
  Firsts();
  EXPECT_EQ(versions_[ShardOf(0)], 4u) << "but the rows are of this version";
}

TEST_F(RowCopyTest, RowsThatAreEvictedOrThatAnAnchorLeavesOutAreGone) {
  Change(ShardOf(0), 3, {{keys_[0], 10}, {keys_[1], 20}}, {}, true);
  Change(ShardOf(2), 3, {{keys_[2], 30}}, {}, true);
  Firsts();
  uint64_t before = stamp_;
  Change(ShardOf(0), 4, {}, {keys_[1]});
  EXPECT_GT(copy_->Wait(before, 0), before);
  EXPECT_EQ(Firsts(), (std::vector<float>{10, -1, 30, 10}));
  Change(ShardOf(0), 5, {{keys_[1], 22}}, {keys_[1]});
  EXPECT_EQ(Firsts(), (std::vector<float>{10, 22, 30, 10})) << "evicted and made again in one change";
  before = stamp_;
  copy_->OnAnchor(ShardOf(0));
  Tell(ShardOf(0), {{keys_[1], 23}});
  EXPECT_EQ(Firsts(), (std::vector<float>{10, 23, 30, 10})) << "what the anchor has not brought yet stays";
  copy_->OnAnchor(ShardOf(0));  // Its stream broke: another one begins.
  Tell(ShardOf(0), {{keys_[0], 12}});
  copy_->OnShard(ShardOf(0), 2);
  EXPECT_EQ(Firsts(), (std::vector<float>{12, -1, 30, 12}));
  EXPECT_GT(stamp_, before);
  EXPECT_EQ(versions_[ShardOf(0)], 2u) << "of another term";
}

}  // namespace
}  // namespace lodestone::worker
