#include "server/store/request_view.h"

#include <cmath>
#include <limits>
#include <map>

#include "common/base/limits.h"
#include "common/wire/shard_map.h"
#include "gtest/gtest.h"
#include "server/store/table_entry.h"
#include "tests/common/wire/byte_runs.h"

namespace lodestone::server {
namespace {

constexpr uint32_t kShards = 4;
constexpr uint32_t kDim = 3;
constexpr uint32_t kBlockElements = 5;

// A dense and an embedding table, and the bytes of a message for shard 0 with a part of each.
class PartsTest : public ::testing::Test {
 protected:
  PartsTest() {
    for (ShardId shard = 0; shard < kShards; ++shard) roles_.Set(shard, ShardRole::kOwns);
    v1::TableSpec dense;
    dense.set_name("dense");
    dense.mutable_dense()->add_dims(23);
    dense.mutable_dense()->set_block_elements(kBlockElements);
    v1::TableSpec rows;
    rows.set_name("rows");
    rows.mutable_embedding()->set_dim(kDim);
    dense_ = Add(dense);
    rows_ = Add(rows);

    v1::Part* part = parts_.Add();
    part->set_table(dense_);
    part->set_shard(kShard);
    for (BlockIndex block = 0; block < 5; ++block) {
      if (ShardOfBlock(dense_, block, kShards) != kShard) continue;
      part->add_blocks(block);
      for (uint32_t i = 0; i < (block == 4 ? 3 : kBlockElements); ++i) {
        gradients_at_.push_back(bytes_.size());
        Append(static_cast<float>(gradients_at_.size()));
      }
    }
    part = parts_.Add();
    part->set_table(rows_);
    part->set_shard(kShard);
    for (Key key = 1; keys_.size() < 7; ++key) {
      if (ShardOfKey(key, kShards) == kShard) keys_.push_back(key);
    }
    keys_at_ = bytes_.size();
    for (const Key key : keys_) Append(key);
    for (size_t i = 0; i < keys_.size() * kDim; ++i) {
      gradients_at_.push_back(bytes_.size());
      Append(static_cast<float>(gradients_at_.size()));
    }
    part->set_row_count(static_cast<uint32_t>(keys_.size()));
  }

  TableId Add(const v1::TableSpec& spec) {
    auto entry = std::make_shared<TableEntry>();
    entry->table = *Table::Create(spec, 1, kShards);
    const TableId id = entry->table->id();
    tables_.emplace(id, std::move(entry));
    return id;
  }

  template <typename T>
  void Append(T value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(value));
  }

  absl::StatusOr<std::vector<PartView>> View(ByteView payload) const {
    return ViewParts(PartKind::kPush, parts_, payload, std::nullopt, tables_, roles_);
  }
  // What comes of a push of the bytes in runs of `run_bytes`.
  absl::Status Check(size_t run_bytes) const {
    const ByteRuns runs(bytes_.data(), bytes_.size(), run_bytes);
    const auto views = View(runs.view());
    return views.ok() ? CheckFinite(*views) : views.status();
  }

  static std::vector<uint8_t> Copy(ByteView view) {
    std::vector<uint8_t> bytes(view.size());
    view.CopyTo(bytes.data());
    return bytes;
  }

  static constexpr ShardId kShard = 0;
  ShardRoles roles_{kShards};
  TableMap tables_;
  TableId dense_ = 0;
  TableId rows_ = 0;
  Parts parts_;
  std::vector<uint8_t> bytes_;
  std::vector<Key> keys_;
  size_t keys_at_ = 0;
  std::vector<size_t> gradients_at_;  // Offset of each gradient element.
};

TEST_F(PartsTest, ViewsKeysAndGradientsInWhateverRunsTheyLie) {
  for (size_t run_bytes = 1; run_bytes <= bytes_.size(); ++run_bytes) {
    const ByteRuns runs(bytes_.data(), bytes_.size(), run_bytes);
    const auto views = View(runs.view());
    ASSERT_TRUE(views.ok()) << views.status();
    const PartView& dense = (*views)[0];
    const PartView& rows = (*views)[1];
    const auto keys_begin = bytes_.begin() + keys_at_;
    const auto keys_end = keys_begin + keys_.size() * sizeof(Key);
    EXPECT_EQ(Copy(dense.gradients), std::vector<uint8_t>(bytes_.begin(), keys_begin));
    EXPECT_EQ(dense.values * sizeof(float), keys_at_);
    EXPECT_EQ(Copy(rows.keys), std::vector<uint8_t>(keys_begin, keys_end));
    EXPECT_EQ(Copy(rows.gradients), std::vector<uint8_t>(keys_end, bytes_.end()));
    EXPECT_EQ(rows.row_count, keys_.size());
    EXPECT_EQ(rows.values, keys_.size() * kDim);
    EXPECT_TRUE(CheckFinite(*views).ok());
  }
}

TEST_F(PartsTest, TakesKeysOnlyForAPull) {
  bytes_.resize(keys_at_ + keys_.size() * sizeof(Key));
  bytes_.erase(bytes_.begin(), bytes_.begin() + keys_at_);
  const ByteRuns runs(bytes_.data(), bytes_.size(), 5);
  const auto views = ViewParts(PartKind::kPull, parts_, runs.view(), std::nullopt, tables_, roles_);
  ASSERT_TRUE(views.ok()) << views.status();
  EXPECT_TRUE((*views)[0].gradients.empty());
  EXPECT_EQ(Copy((*views)[1].keys), bytes_);
}

TEST_F(PartsTest, TakesKeysFromTheirListIfThereIsOne) {
  const auto keys_begin = bytes_.begin() + keys_at_;
  const std::vector<uint8_t> list(keys_begin, keys_begin + keys_.size() * sizeof(Key));
  bytes_.erase(keys_begin, keys_begin + list.size());
  const ByteRuns runs(bytes_.data(), bytes_.size(), 7);
  const auto view = [&](const std::vector<uint8_t>& keys) {
    return ViewParts(PartKind::kPush, parts_, runs.view(), ByteView(keys.data(), keys.size()), tables_, roles_);
  };
  const auto views = view(list);
  ASSERT_TRUE(views.ok()) << views.status();
  EXPECT_EQ(Copy((*views)[1].keys), list);
  std::vector<uint8_t> gradients = Copy((*views)[0].gradients);
  const std::vector<uint8_t> of_rows = Copy((*views)[1].gradients);
  gradients.insert(gradients.end(), of_rows.begin(), of_rows.end());
  EXPECT_EQ(gradients, bytes_);

  std::vector<uint8_t> other(list.begin(), list.end() - sizeof(Key));
  EXPECT_EQ(view(other).status().message(), "part 1, table `rows`: has 7 rows, but the list of keys has 6 left");
  other = list;
  other.insert(other.end(), list.begin(), list.begin() + 2 * sizeof(Key));
  EXPECT_EQ(view(other).status().message(), "the list of keys has 2 that belong to no part");
}

TEST_F(PartsTest, NamesTheGradientThatIsNotFiniteInWhateverRunsItLies) {
  const std::vector<uint8_t> good = bytes_;
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    for (const size_t at : gradients_at_) {
      bytes_ = good;
      std::memcpy(bytes_.data() + at, &bad, sizeof(bad));
      const absl::Status whole = Check(bytes_.size());
      ASSERT_EQ(whole.code(), absl::StatusCode::kInvalidArgument);
      for (const size_t run_bytes : {1, 3, 4, 7, 16, 33}) ASSERT_EQ(Check(run_bytes), whole) << run_bytes;
    }
  }
  const size_t last = keys_.size() - 1;
  EXPECT_EQ(Check(1).message(), "gradient of table `rows`, key " + std::to_string(keys_[last]) + ", element 2 is inf");
}

TEST_F(PartsTest, NamesTheKeyOfAnotherShardInWhateverRunsItLies) {
  Key stranger = 1;
  while (ShardOfKey(stranger, kShards) == kShard) ++stranger;
  std::memcpy(bytes_.data() + keys_at_ + 4 * sizeof(Key), &stranger, sizeof(Key));
  for (size_t run_bytes = 1; run_bytes <= bytes_.size(); ++run_bytes) {
    const absl::Status status = Check(run_bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "part 1, table `rows`: key " + std::to_string(stranger) + " is not on shard 0");
  }
}

TEST_F(PartsTest, RefusesAPayloadThatIsShorterOrLongerThanItsParts) {
  bytes_.push_back(0);
  EXPECT_EQ(Check(9).message(), "the payload has " + std::to_string(bytes_.size()) + " bytes, but the parts describe " +
                                    std::to_string(bytes_.size() - 1));
  bytes_.resize(bytes_.size() - 2);
  const std::string needed = std::to_string(keys_.size() * (sizeof(Key) + kDim * sizeof(float)));
  EXPECT_EQ(Check(9).message(), "part 1, table `rows`: needs " + needed + " bytes of payload, but " +
                                    std::to_string(bytes_.size() - keys_at_) + " are left");
  bytes_.clear();
  EXPECT_EQ(Check(1).code(), absl::StatusCode::kInvalidArgument);
}

// Rows of several shards in one part, and the same in a part for each.
class SeveralShardsTest : public PartsTest {
 protected:
  SeveralShardsTest() {
    std::map<ShardId, std::vector<Key>> by_shard;
    for (Key key = 1; key <= 20; ++key) by_shard[ShardOfKey(key, kShards)].push_back(key);
    parts_.Clear();
    v1::Part& part = *parts_.Add();
    part.set_table(rows_);
    part.set_more(v1::Part::FOR_PS);
    for (const auto& [shard, keys] : by_shard) {
      part.add_shards(shard);
      part.add_row_counts(static_cast<uint32_t>(keys.size()));
      v1::Part& one = *plain_.Add();
      one.set_table(rows_);
      one.set_shard(shard);
      one.set_row_count(static_cast<uint32_t>(keys.size()));
      one.set_more(v1::Part::FOR_PS);
    }
    bytes_.clear();
    for (const auto& [shard, keys] : by_shard) {
      for (const Key key : keys) Append(key);
    }
    list_ = bytes_;
    for (size_t i = 0; i < 20 * kDim; ++i) Append(static_cast<float>(i));
    values_.assign(bytes_.begin() + list_.size(), bytes_.end());
  }

  absl::Status Error() const { return View(ByteView(bytes_.data(), bytes_.size())).status(); }

  Parts plain_;
  std::vector<uint8_t> list_;    // The keys,
  std::vector<uint8_t> values_;  // and the values.
};

TEST_F(SeveralShardsTest, IsViewedAsAPartForEach) {
  const auto expected = ViewParts(PartKind::kPush, plain_, ByteView(values_.data(), values_.size()),
                                  ByteView(list_.data(), list_.size()), tables_, roles_);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (size_t run_bytes = 1; run_bytes <= bytes_.size(); ++run_bytes) {
    const ByteRuns in_parts(bytes_.data(), bytes_.size(), run_bytes);
    const ByteRuns after_list(values_.data(), values_.size(), run_bytes);
    const ByteView list(list_.data(), list_.size());
    for (const auto& views :
         {View(in_parts.view()), ViewParts(PartKind::kPush, parts_, after_list.view(), list, tables_, roles_)}) {
      ASSERT_TRUE(views.ok()) << views.status();
      ASSERT_EQ(views->size(), expected->size());
      for (size_t i = 0; i < views->size(); ++i) {
        EXPECT_EQ((*views)[i].shard, (*expected)[i].shard);
        EXPECT_EQ((*views)[i].index, 0);
        EXPECT_EQ((*views)[i].row_count, (*expected)[i].row_count);
        EXPECT_EQ((*views)[i].values, (*expected)[i].values);
        EXPECT_EQ(Copy((*views)[i].keys), Copy((*expected)[i].keys));
        EXPECT_EQ(Copy((*views)[i].gradients), Copy((*expected)[i].gradients));
        EXPECT_FALSE((*views)[i].last_for_ps);
        EXPECT_TRUE((*views)[i].last_for_shard);
      }
    }
  }
  size_t keys = 0;
  EXPECT_EQ(*PushPayloadBytes(parts_, tables_, &keys), bytes_.size());
  EXPECT_EQ(keys, list_.size());
  const auto pulled =
      ViewParts(PartKind::kPull, parts_, ByteView(list_.data(), list_.size()), std::nullopt, tables_, roles_);
  ASSERT_TRUE(pulled.ok()) << pulled.status();
  EXPECT_EQ(pulled->size(), expected->size());
}

TEST_F(SeveralShardsTest, ThatContradictThemselvesAreRefused) {
  const Parts good = parts_;
  parts_[0].add_row_counts(0);
  EXPECT_EQ(Error().message(), "part 0, table `rows`: has 4 shards and 5 row counts");
  parts_ = good;
  parts_[0].mutable_row_counts()->RemoveLast();
  EXPECT_EQ(Error().message(), "part 0, table `rows`: has 4 shards and 3 row counts");
  EXPECT_FALSE(PushPayloadBytes(parts_, tables_).ok());
  for (const bool has_shard : {true, false}) {
    parts_ = good;
    has_shard ? parts_[0].set_shard(1) : parts_[0].set_row_count(1);
    EXPECT_EQ(Error().message(),
              "part 0, table `rows`: the part is of several shards, and has a shard or a row_count beside them");
  }
  parts_ = good;
  parts_[0].set_table(dense_);
  EXPECT_EQ(Error().message(), "part 0, table `dense`: is a dense table, but the part is of several shards");
  parts_ = good;
  parts_[0].set_shards(1, kShards);
  EXPECT_EQ(Error().message(), "part 0: there is no shard 4 of 4");
  parts_ = good;
  parts_[0].set_shards(1, 2);
  EXPECT_EQ(Error().code(), absl::StatusCode::kInvalidArgument) << "keys of another shard";
  parts_ = good;
  parts_[0].set_row_counts(3, UINT32_MAX);
  EXPECT_EQ(Error().code(), absl::StatusCode::kInvalidArgument);
  parts_ = good;
  parts_[0].add_blocks(1);
  EXPECT_EQ(Error().message(), "part 0, table `rows`: is an embedding table, but the part has blocks");
  parts_ = good;
  for (size_t i = 0; i < limits::kMessagePartsMax; ++i) parts_[0].add_shards(0);
  const std::string too_many = std::to_string(limits::kMessagePartsMax + 4) + " parts in one message; the limit is " +
                               std::to_string(limits::kMessagePartsMax);
  EXPECT_EQ(Error().message(), too_many);
  EXPECT_EQ(PushPayloadBytes(parts_, tables_).status().message(), too_many);
  parts_ = good;
  roles_.Set(2, ShardRole::kFollowing);
  EXPECT_EQ(Error().code(), absl::StatusCode::kAborted);
}

}  // namespace
}  // namespace lodestone::server
