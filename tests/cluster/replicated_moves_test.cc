// Moves of shards that have followers, between real ps while a client pushes: every acknowledged push is there exactly
// once, whichever ps is killed, and all copies are the same in the end.
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/cluster/moves_fixture.h"

namespace lodestone {
namespace {

class ReplicatedMovesTest : public MovesFixture {
 protected:
  void Start(uint32_t servers, bool own_disks = false, std::vector<std::string> sets = {}) {
    sets.push_back("worker.retry_timeout_ms=120000");
    MovesFixture::Start(servers, std::move(sets), /*replicas=*/2, own_disks);
    AwaitAllInSync();
  }
  uint32_t HeldBy(uint32_t server) {
    const v1::MemberStatus member = MemberOf(server);
    return member.shards_owned() + member.shards_following();
  }
};

TEST_F(ReplicatedMovesTest, AServerIsDrainedReplacedAndFilledAgainWhilePushesGoOn) {
  ASSERT_NO_FATAL_FAILURE(Start(/*servers=*/4, /*own_disks=*/true));
  ASSERT_TRUE(AwaitPushes(100));
  const grpc::Status drained = Drain(1);
  ASSERT_TRUE(drained.ok()) << drained.error_message();
  uint32_t fewest = kShards;  // In sync.
  ASSERT_TRUE(Await([&] {
    const v1::ClusterStatus cluster = StatusOf(0).cluster();
    fewest = std::min(fewest, cluster.shards_in_sync());
    return HeldBy(1) == 0 && cluster.shards_in_sync() == kShards;
  })) << StatusOf(0).cluster().DebugString();
  std::printf("the longest pause between two acknowledgements: %lld ms; at least %u of %u shards in sync\n",
              static_cast<long long>(pause_ms_max()), fewest, kShards);
  // The machine goes, and another one comes in its place.
  cluster_->Kill(1);
  ASSERT_TRUE(cluster_->DeleteDisk(1).ok());
  ASSERT_TRUE(Await([this] { return !MemberOf(1).alive(); }));
  EXPECT_EQ(StatusOf(0).cluster().shards_in_sync(), kShards) << "it held nothing";
  ASSERT_TRUE(cluster_->MoveAddress(1).ok());
  ASSERT_TRUE(cluster_->Start(1).ok());
  ASSERT_TRUE(Await([this] { return cluster_->Serves(1); }));
  ASSERT_TRUE(AwaitPushes(100));
  EXPECT_EQ(HeldBy(1), 0u) << "it drains still";
  ASSERT_TRUE(Drain(1, /*undo=*/true).ok());
  const grpc::Status leveled = Level();
  ASSERT_TRUE(leveled.ok()) << leveled.error_message();
  ASSERT_TRUE(Await([this] { return NothingIsToMove() && MemberOf(1).shards_owned() == kShards / 4; }));
  for (uint32_t server = 0; server < 4; ++server) {
    EXPECT_NEAR(HeldBy(server), 2 * kShards / 4, 1) << "ps " << server << " holds another number of copies";
  }
  std::printf("the longest pause between two acknowledgements: %lld ms\n", static_cast<long long>(pause_ms_max()));
  ExpectExact();
  AwaitAllInSync();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(ReplicatedMovesTest, AShardMovesToItsFollowerAndToAThirdOne) {
  ASSERT_NO_FATAL_FAILURE(Start(/*servers=*/3));
  for (const uint32_t to : {1u, 2u, 0u}) {
    const grpc::Status moved = Move({0, 1, 2, 3, 4, 5}, to);
    ASSERT_TRUE(moved.ok()) << moved.error_message();
    ASSERT_TRUE(Await([&] { return NothingIsToMove() && OwnedBy(to) >= 6; }));
    ASSERT_TRUE(AwaitPushes(50));
  }
  ExpectExact();
  AwaitAllInSync();
  ExpectReplicasEqual();
  EXPECT_EQ(Drain(1).error_code(), grpc::StatusCode::OK);
  EXPECT_EQ(Drain(2).error_code(), grpc::StatusCode::FAILED_PRECONDITION) << "one would be left to hold two copies";
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(ReplicatedMovesTest, WithRebalanceAutoAServerThatMayOwnShardsAgainGetsItsPartByItself) {
  ASSERT_NO_FATAL_FAILURE(Start(
      /*servers=*/3, /*own_disks=*/false,
      {"coordinator.rebalance=auto", "coordinator.rebalance_rule.sustained_ms=1000",
       "coordinator.rebalance_rule.shard_rest_ms=1000", "coordinator.rebalance_rule.bytes_min=1",
       "coordinator.rebalance_rule.traffic_bytes_per_second_min=1000000000000"}));
  ASSERT_TRUE(AwaitPushes(100));
  ASSERT_TRUE(Drain(1).ok());
  ASSERT_TRUE(Await([this] { return HeldBy(1) == 0 && NothingIsToMove(); }));
  ASSERT_TRUE(Drain(1, /*undo=*/true).ok());
  EXPECT_TRUE(Await([this] { return OwnedBy(1) >= kShards / 3 - 1 && NothingIsToMove(); }))
      << StatusOf(0).cluster().DebugString();
  ExpectExact();
  AwaitAllInSync();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

// LODESTONE_MOVES=1000 for as many, LODESTONE_MOVE_KILLS=1000 for as many kills of ps.
TEST_F(ReplicatedMovesTest, AnyPsMayDieAtAnyMomentOfAMoveAndNothingIsLost) {
  ASSERT_NO_FATAL_FAILURE(Start(/*servers=*/4));
  ASSERT_NO_FATAL_FAILURE(MoveAndKill(/*servers=*/4, /*seed=*/20261127));
  ExpectExact();
  AwaitAllInSync();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

}  // namespace
}  // namespace lodestone
