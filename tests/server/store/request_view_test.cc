#include "server/store/request_view.h"

#include <cmath>
#include <limits>

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

}  // namespace
}  // namespace lodestone::server
