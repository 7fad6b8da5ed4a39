// Tables whose learning rate is divided by the delay of gradients (Consistency.Async.BY_DELAY), through a store.
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"

namespace lodestone::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class RateByDelayTest : public StoreTest {
 protected:
  static constexpr uint32_t kDim = 2;
  static constexpr Key kKey = 11;
  static constexpr BlockLayout kOneBlock = {4, 4};

  // A dense table of one block and one of rows, which subtract what is pushed, and one of rows at the full rate.
  void SetUp() override {
    Make();
    dense_ = WithRateByDelay(AddingDense("dense", 4, 4));
    rows_ = WithRateByDelay(AddingRows("rows", kDim));
    const auto made = Ensure({dense_, rows_, AddingRows("full", kDim)});
    ASSERT_TRUE(made.ok()) << made.status();
  }

  static v1::TableSpec WithRateByDelay(v1::TableSpec spec) {
    spec.mutable_consistency()->mutable_async()->set_rate(v1::Consistency::Async::BY_DELAY);
    return spec;
  }

  // Pushes 12 to kKey of an embedding table; returns what that added to it.
  float PushRow(const std::string& table, Version read) {
    const float before = PullRows(TableIdOf(table), kDim, {kKey})[0];
    auto push = NewPush(++sequence_);
    push.AddRows(TableIdOf(table), kDim, {{kKey, 12.0f}}, true);
    push.header.mutable_parts(0)->add_read_versions(read);
    const auto pushed = Push(push);
    EXPECT_TRUE(pushed.ok()) << pushed.status();
    return PullRows(TableIdOf(table), kDim, {kKey})[0] - before;
  }

  v1::TableSpec dense_, rows_;
  Sequence sequence_ = 0;
};

TEST_F(RateByDelayTest, TheRateOfARowIsDividedByTheUpdatesSinceItWasRead) {
  for (int i = 0; i < 9; ++i) PushRow("full", 0);  // To the same shard: it is at version 9.
  EXPECT_EQ(PushRow("rows", 9), 12) << "nothing came between";
  EXPECT_EQ(PushRow("rows", 9), 12) << "one update did: a worker that has one gradient under way";
  EXPECT_EQ(PushRow("rows", 9), 6);
  EXPECT_EQ(PushRow("rows", 9), 4);
  EXPECT_EQ(PushRow("rows", 1), 1) << "of version 1, and the shard was at 13";
  EXPECT_EQ(PushRow("rows", 0), 12) << "not known";
  EXPECT_EQ(PushRow("rows", 1000), 12) << "of a version that the shard has lost";
  EXPECT_EQ(PushRow("full", 9), 12) << "the table's rate is the full one";
}

TEST_F(RateByDelayTest, TheRateOfABlockIsDividedByTheUpdatesSinceItWasRead) {
  std::vector<float> added;
  float before = Floats(PullBlocks(TableIdOf("dense"), kOneBlock).at(0).second)[0];
  for (int i = 0; i < 4; ++i) {
    auto push = NewPush(++sequence_);
    push.AddDense(TableIdOf("dense"), kOneBlock, 12.0f);
    push.header.mutable_parts(0)->add_read_versions(1);
    ASSERT_TRUE(Push(push).ok());
    const float after = Floats(PullBlocks(TableIdOf("dense"), kOneBlock).at(0).second)[0];
    added.push_back(after - before);
    before = after;
  }
  // The first two find the shard at versions 0 and 1.
  EXPECT_THAT(added, ElementsAre(12, 12, 12, 6));
}

TEST_F(RateByDelayTest, APartOfSeveralShardsHasAVersionForEach) {
  Key other = 0;
  while (ShardOfKey(other, kShards) == ShardOfKey(kKey, kShards)) ++other;
  for (int i = 0; i < 4; ++i) PushRow("full", 0);  // The shard of kKey is at version 4, the other one at 0.
  auto push = NewPush(++sequence_);
  v1::Part* const part = push.header.add_parts();
  part->set_table(TableIdOf("rows"));
  for (const Key key : {kKey, other}) {
    part->add_shards(ShardOfKey(key, kShards));
    part->add_row_counts(1);
    push.Append(key);
  }
  push.AppendRepeated(12, 2 * kDim);
  auto wrong = push;
  wrong.header.mutable_parts(0)->add_read_versions(1);
  EXPECT_THAT(Push(wrong).status().message(), HasSubstr("table `rows`: has 1 read_versions for 2 shards"));
  part->add_read_versions(1);
  part->add_read_versions(1);
  const float before = PullRows(TableIdOf("rows"), kDim, {kKey})[0];
  const float other_before = PullRows(TableIdOf("rows"), kDim, {other})[0];
  const auto pushed = Push(push);
  ASSERT_TRUE(pushed.ok()) << pushed.status();
  EXPECT_EQ(PullRows(TableIdOf("rows"), kDim, {kKey})[0] - before, 4);
  EXPECT_EQ(PullRows(TableIdOf("rows"), kDim, {other})[0] - other_before, 12);
}

TEST_F(RateByDelayTest, ALaterWorkerMayChangeIt) {
  for (int i = 0; i < 4; ++i) PushRow("rows", 0);
  EXPECT_EQ(PushRow("rows", 1), 4);
  ASSERT_TRUE(Ensure({AddingRows("rows", kDim)}, kWorker + 1).ok());
  EXPECT_EQ(PushRow("rows", 1), 12);
  ASSERT_TRUE(Ensure({rows_}, kWorker + 2).ok());
  EXPECT_LT(PushRow("rows", 1), 12);
}

}  // namespace
}  // namespace lodestone::server
