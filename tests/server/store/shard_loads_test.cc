// What a ps reports of each of its shards: bytes, and what comes to it.
#include "server/store/shard_loads.h"

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

class ShardLoadsTest : public StoreTest {
 protected:
  static constexpr int64_t kWindowMs = 5000;

  v1::StatusResponse Status() const {
    v1::StatusResponse status;
    store_->FillStatus(&status);
    return status;
  }
  void Pass(int64_t ms) {
    time_.AdvanceMs(ms);
    store_->Tick();
  }
  // The shards that the status has.
  std::vector<uint32_t> Told() const {
    const v1::StatusResponse status = Status();
    std::vector<uint32_t> shards;
    for (const v1::ShardLoad& load : status.shards()) shards.push_back(load.shard());
    return shards;
  }
};

TEST_F(ShardLoadsTest, TheStatusHasWhatEachShardHoldsAndWhatComesToIt) {
  Make();
  const BlockLayout layout{1024, 64};  // Two blocks on each of eight shards.
  const auto tables = Ensure({AddingDense("d", 1024, 64), AddingRows("r", 2)});
  ASSERT_TRUE(tables.ok()) << tables.status();
  Pass(1000);
  EXPECT_THAT(Told(), IsEmpty()) << "nothing is measured yet";
  constexpr Key kKey = 7;
  const ShardId of_key = ShardOfKey(kKey, kShards);
  for (Sequence i = 1; i <= 10; ++i) {
    auto push = NewPush(i);
    push.AddDense(tables->tables(0).id(), layout, 1.0f);
    push.AddRows(tables->tables(1).id(), 2, {{kKey, 1.0f}}, true);
    ASSERT_TRUE(Push(push).ok());
  }
  for (int i = 0; i < 5; ++i) {
    PullBlocks(tables->tables(0).id(), layout);
    PullRows(tables->tables(1).id(), 2, {kKey});
  }
  Pass(kWindowMs);
  const v1::StatusResponse status = Status();
  ASSERT_THAT(status.shards(), SizeIs(kShards));
  uint64_t bytes = 0, of_tables = 0;
  for (const v1::ShardLoad& load : status.shards()) {
    const bool has_key = load.shard() == of_key;
    EXPECT_FLOAT_EQ(load.pushes_per_second(), 2);
    EXPECT_FLOAT_EQ(load.push_bytes_per_second(), 2 * (512 + (has_key ? 8 + 8 : 0)));
    EXPECT_GT(load.push_ms_per_second(), 0);
    EXPECT_FLOAT_EQ(load.pulls_per_second(), has_key ? 2 : 1);
    EXPECT_FLOAT_EQ(load.pull_bytes_per_second(), 512 + (has_key ? 8 : 0));
    bytes += load.bytes();
  }
  for (const v1::TableStatus& table : status.tables()) of_tables += table.bytes();
  EXPECT_EQ(bytes, of_tables);
  Pass(kWindowMs);
  EXPECT_FLOAT_EQ(Status().shards(0).pushes_per_second(), 0) << "nothing came since";
  EXPECT_FLOAT_EQ(Status().shards(0).push_ms_per_second(), 0);
}

TEST_F(ShardLoadsTest, AShardIsToldOnceItHasBeenOwnedForAWholeWindow) {
  Make();
  Pass(1000);
  Pass(kWindowMs);
  EXPECT_THAT(Told(), SizeIs(kShards));
  store_->shards().GiveUp(3);
  Pass(1000);
  EXPECT_THAT(Told(), SizeIs(kShards - 1));
  store_->shards().TakeBack(3);
  Pass(1000);
  Pass(kWindowMs - 1000);
  EXPECT_THAT(Told(), SizeIs(kShards - 1)) << "what it measured before is of then";
  Pass(1000);
  EXPECT_THAT(Told(), SizeIs(kShards));
}

}  // namespace
}  // namespace lodestone::server
