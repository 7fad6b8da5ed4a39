#include "common/telemetry/hot_shards.h"

#include <cstdint>
#include <vector>

#include "common/base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Two live servers with 32 shards each, to all of which as much comes.
class HotShardsTest : public testing::Test {
 protected:
  HotShardsTest() {
    for (uint32_t server = 0; server < 2; ++server) {
      v1::MemberStatus* const member = cluster_.add_servers();
      member->set_index(server);
      member->set_alive(true);
      for (uint32_t shard = server; shard < 64; shard += 2) {
        v1::ShardLoad* const load = member->mutable_server()->add_shards();
        load->set_shard(shard);
        load->set_push_bytes_per_second(1e6);
        load->set_pull_bytes_per_second(2e6);
        load->set_push_ms_per_second(2);
      }
    }
  }
  v1::ShardLoad* Load(uint32_t shard) {
    return cluster_.mutable_servers(shard % 2)->mutable_server()->mutable_shards(shard / 2);
  }

  v1::ClusterStatus cluster_;
};

TEST_F(HotShardsTest, WhereAllTakeAsMuchNoneIsHot) { EXPECT_THAT(HotShardsOf(cluster_), IsEmpty()); }

TEST_F(HotShardsTest, AShardThatTakesMuchMoreThanOthersIsNamedWithItsMostFrequentKey) {
  Load(17)->set_push_bytes_per_second(63e6);
  v1::HotKey* const key = cluster_.mutable_servers(1)->mutable_server()->add_hot_keys();
  key->set_table("emb");
  key->set_key(42);
  key->set_shard(17);
  key->set_share(0.38f);
  const std::vector<v1::HotShard> hot = HotShardsOf(cluster_);
  ASSERT_THAT(hot, SizeIs(1));
  EXPECT_EQ(hot[0].shard(), 17);
  EXPECT_EQ(hot[0].server(), 1);
  EXPECT_NEAR(hot[0].share(), 0.5, 1e-6);
  EXPECT_NEAR(hot[0].ratio(), 63, 1e-6);
  EXPECT_EQ(hot[0].text(),
            "shard 17 on ps 1 takes 50 % of the bytes pushed, 63 times the median of all; key 42 of table emb is about "
            "38 % of its keys");
}

TEST_F(HotShardsTest, AShardThatTakesLongerForEachByteAndMuchOfTheTimeIsNamedAsSlow) {
  EXPECT_THAT(SlowShardsOf(cluster_), IsEmpty());
  Load(17)->set_push_ms_per_second(42);     // Of 168.
  Load(8)->set_push_bytes_per_second(1e4);  // Takes 100 times as long for each byte, but as long as others.
  const std::vector<v1::SlowShard> slow = SlowShardsOf(cluster_);
  ASSERT_THAT(slow, SizeIs(1));
  EXPECT_EQ(slow[0].shard(), 17);
  EXPECT_EQ(slow[0].server(), 1);
  EXPECT_NEAR(slow[0].share(), 0.25, 1e-6);
  EXPECT_NEAR(slow[0].ratio(), 21, 1e-4);
  EXPECT_EQ(slow[0].text(),
            "shard 17 on ps 1 takes 25 % of the time that pushes take, 21 times the median of all for each byte");
  EXPECT_THAT(HotShardsOf(cluster_), IsEmpty());
}

// With few shards a tenth of the time is no more than a shard's share.
TEST_F(HotShardsTest, AShardThatTakesNoLongerThanOthersIsNotSlowForItsFewBytes) {
  v1::ClusterStatus cluster;
  v1::MemberStatus* const member = cluster.add_servers();
  member->set_alive(true);
  for (uint32_t shard = 0; shard < 8; ++shard) {
    v1::ShardLoad* const load = member->mutable_server()->add_shards();
    load->set_shard(shard);
    load->set_push_bytes_per_second(shard < 5 ? 1e8f : 1e6f);  // Some hold blocks, and others only rows.
    load->set_push_ms_per_second(shard < 5 ? 30 : 25);
  }
  EXPECT_THAT(SlowShardsOf(cluster), IsEmpty());
}

TEST_F(HotShardsTest, AHotShardIsNotSlowForThatNorIsAnyOfAClusterWithLittleToDo) {
  Load(17)->set_push_bytes_per_second(63e6);
  Load(17)->set_push_ms_per_second(126);
  EXPECT_THAT(HotShardsOf(cluster_), SizeIs(1));
  EXPECT_THAT(SlowShardsOf(cluster_), IsEmpty());
  for (uint32_t shard = 0; shard < 64; ++shard) Load(shard)->set_push_ms_per_second(shard == 17 ? 30 : 0.01f);
  Load(17)->set_push_bytes_per_second(1e3);
  EXPECT_THAT(SlowShardsOf(cluster_), IsEmpty());
}

TEST_F(HotShardsTest, OfPushesAndPullsTheGreaterShareIsTold) {
  Load(3)->set_push_bytes_per_second(9e6);    // 9 of 72 million.
  Load(3)->set_pull_bytes_per_second(126e6);  // 126 of 252.
  Load(8)->set_pull_bytes_per_second(50e6);   // Of 300.
  const std::vector<v1::HotShard> hot = HotShardsOf(cluster_);
  ASSERT_THAT(hot, SizeIs(2));
  EXPECT_THAT(hot[0].text(), testing::StartsWith("shard 3 on ps 1 takes 42 % of the bytes pulled"));
  EXPECT_EQ(hot[1].shard(), 8);
}

TEST_F(HotShardsTest, TheBlocksOfASmallDenseTableAreNotHotBecauseOtherShardsHaveNone) {
  for (uint32_t shard = 5; shard < 64; ++shard) {
    Load(shard)->set_push_bytes_per_second(0);
    Load(shard)->set_pull_bytes_per_second(0);
  }
  EXPECT_THAT(HotShardsOf(cluster_), IsEmpty());
}

TEST_F(HotShardsTest, NothingIsHotOnADeadServerOrInAnIdleCluster) {
  Load(17)->set_push_bytes_per_second(63e6);
  cluster_.mutable_servers(1)->set_alive(false);
  EXPECT_THAT(HotShardsOf(cluster_), IsEmpty());
  cluster_.mutable_servers(1)->set_alive(true);
  for (uint32_t shard = 0; shard < 64; ++shard) {
    Load(shard)->set_push_bytes_per_second(shard == 17 ? 1000 : 1);
    Load(shard)->set_pull_bytes_per_second(0);
  }
  EXPECT_THAT(HotShardsOf(cluster_), IsEmpty());
}

}  // namespace
}  // namespace lodestone
