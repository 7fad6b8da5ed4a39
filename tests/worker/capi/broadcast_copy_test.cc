#include "worker/capi/broadcast_copy.h"

#include <cstdint>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/byte_view.h"
#include "common/wire/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::worker {
namespace {

using ::testing::ElementsAre;

constexpr uint32_t kShards = 4;

// A dense table of two blocks of two elements.
TableHandle TwoBlocks() {
  TableHandle table;
  table.id = TableIdOf("weights");
  table.spec.set_name("weights");
  table.spec.mutable_dense()->add_dims(4);
  table.layout = {.elements = 4, .block_elements = 2};
  return table;
}

class BroadcastCopyTest : public ::testing::Test {
 protected:
  ShardId ShardOf(BlockIndex block) const { return ShardOfBlock(table_.id, block, kShards); }
  void Bring(BlockIndex block, Version version, float value, size_t count = 2) {
    const std::vector<float> values(count, value);
    copy_.OnBlock({.table = table_.id,
                   .block = block,
                   .shard = ShardOf(block),
                   .version = version,
                   .values = ByteView(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)),
                   .count = count});
    copy_.OnShard(ShardOf(block), version);
  }
  std::vector<float> Copy(uint64_t since = 0) {
    float* const into[] = {out_.data()};
    EXPECT_EQ(copy_.Copy(into, since, &stamp_, &versions_), absl::OkStatus());
    return out_;
  }

  const TableHandle table_ = TwoBlocks();
  BroadcastCopy copy_{{&table_}, kShards};
  std::vector<float> out_ = std::vector<float>(4, 0);
  uint64_t stamp_ = 0;
  ShardVersions versions_;
};

TEST_F(BroadcastCopyTest, ThereIsNothingBeforeAllValuesHaveCome) {
  ASSERT_NE(ShardOf(0), ShardOf(1));
  Bring(0, 1, 7);
  EXPECT_EQ(copy_.Wait(0, 0), 0u);
  float* const into[] = {out_.data()};
  EXPECT_TRUE(absl::IsUnavailable(copy_.Copy(into, 0, &stamp_, nullptr)));
  Bring(1, 1, 8);
  EXPECT_GT(copy_.Wait(0, -1), 0u);
  EXPECT_THAT(Copy(), ElementsAre(7, 7, 8, 8));
  EXPECT_EQ(versions_[ShardOf(0)], 1u);
}

TEST_F(BroadcastCopyTest, ACopyLeavesOutBlocksThatHaveNotChanged) {
  Bring(0, 1, 7);
  Bring(1, 1, 8);
  Copy();
  Bring(1, 2, 9);
  out_.assign(4, -1);
  EXPECT_THAT(Copy(stamp_), ElementsAre(-1, -1, 9, 9));
  EXPECT_EQ(versions_[ShardOf(1)], 2u);
}

TEST_F(BroadcastCopyTest, AWaitEndsWithNews) {
  Bring(0, 1, 7);
  Bring(1, 1, 8);
  const uint64_t before = copy_.Wait(0, -1);
  EXPECT_EQ(copy_.Wait(before, 0), before);
  std::thread other([this] { Bring(0, 2, 6); });
  EXPECT_GT(copy_.Wait(before, -1), before);
  other.join();
}

TEST_F(BroadcastCopyTest, OldBlocksAndThoseOfAWrongSizeAreIgnored) {
  Bring(0, 5, 7);
  Bring(1, 1, 8);
  Bring(0, 4, 1);
  Bring(1, 2, 1, /*count=*/1);
  EXPECT_THAT(Copy(), ElementsAre(7, 7, 8, 8));
}

TEST_F(BroadcastCopyTest, AnAnchorReplacesWhatHasComeThoughItsVersionsAreLower) {
  Bring(0, 5, 7);
  Bring(1, 9, 8);
  Copy();
  copy_.OnAnchor(ShardOf(0));
  EXPECT_THAT(Copy(), ElementsAre(7, 7, 8, 8)) << "until it comes";
  EXPECT_EQ(versions_[ShardOf(0)], 5u);
  Bring(0, 3, 6);
  EXPECT_THAT(Copy(), ElementsAre(6, 6, 8, 8));
  EXPECT_EQ(versions_[ShardOf(0)], 3u);
  EXPECT_EQ(versions_[ShardOf(1)], 9u);
}

TEST_F(BroadcastCopyTest, AnotherNumberOfArraysThanTablesIsRefused) {
  Bring(0, 1, 7);
  Bring(1, 1, 8);
  float* const into[] = {out_.data(), out_.data()};
  EXPECT_TRUE(absl::IsInvalidArgument(copy_.Copy(into, 0, &stamp_, nullptr)));
}

}  // namespace
}  // namespace lodestone::worker
