// Real ps that die or freeze while followers hold their shards: every acknowledged push is there exactly once.
#include <signal.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/pushing_fixture.h"

namespace lodestone {
namespace {

// Three ps, and one client that pushes ones.
class FailoverTest : public PushingFixture {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartCluster(/*servers=*/3, {"coordinator.lease_ms=2000"}));
    ASSERT_NO_FATAL_FAILURE(AwaitAllInSync());
    ASSERT_NO_FATAL_FAILURE(StartPushing());
  }
};

TEST_F(FailoverTest, APsThatDiesForGoodIsReplacedAndNothingIsLostOrDoubled) {
  ASSERT_TRUE(AwaitPushes(100));
  cluster_->Kill(1);
  ASSERT_TRUE(AwaitPushes(200)) << "the run does not go on without it";
  for (const uint32_t server : {0u, 2u}) EXPECT_GT(StatusOf(server).server().shards_owned(), 0u);
  EXPECT_EQ(StatusOf(0).server().shards_owned() + StatusOf(2).server().shards_owned(), kShards);
  // With nothing of what it was.
  std::filesystem::remove_all(cluster_->DataFolder(1));
  ASSERT_TRUE(cluster_->Start(1).ok());
  ASSERT_TRUE(Await([this] { return cluster_->Listens(1) && AllInSync(); }));
  ASSERT_TRUE(AwaitPushes(100));
  ExpectReplicasEqual();
  ExpectExact();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(FailoverTest, OneAfterTheOtherMayDie) {
  for (const uint32_t server : {1u, 2u, 1u}) {
    ASSERT_TRUE(AwaitPushes(50));
    cluster_->Kill(server);
    ASSERT_TRUE(AwaitPushes(50));
    ASSERT_TRUE(cluster_->Start(server).ok());
    ASSERT_TRUE(Await([&] { return cluster_->Listens(server) && AllInSync(); }));
  }
  ExpectExact();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(FailoverTest, IfTwoDieTogetherTheOneThatComesBackAloneServesWhatBothHeld) {
  for (const uint32_t back : {2u, 1u, 2u}) {
    const uint32_t gone = 3 - back;
    ASSERT_TRUE(AwaitPushes(50));
    cluster_->Kill(gone);
    cluster_->Kill(back);
    ASSERT_TRUE(cluster_->Start(back).ok());
    ASSERT_TRUE(AwaitPushes(50)) << "ps " << back << " is back alone";
    ASSERT_TRUE(cluster_->Start(gone).ok());
    ASSERT_TRUE(Await([&] { return cluster_->Listens(gone) && AllInSync(); }));
  }
  ExpectExact();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(FailoverTest, APsThatWasFrozenForLongerThanItsLeaseAcknowledgesNothingAfterIt) {
  ASSERT_TRUE(AwaitPushes(100));
  cluster_->Signal(1, SIGSTOP);
  ASSERT_TRUE(AwaitPushes(200));
  EXPECT_TRUE(client_->shard_map()->ShardsOf(1).empty());
  cluster_->Signal(1, SIGCONT);
  ASSERT_TRUE(AwaitPushes(100));
  // Until it has heard of it, it takes what it owned for in sync.
  ASSERT_TRUE(Await([this] { return cluster_->StatusOf(1, 1000).ok() && StatusOf(1).server().shards_owned() == 0; }));
  ASSERT_TRUE(Await([this] { return AllInSync(); })) << "it follows again";
  EXPECT_EQ(StatusOf(1).server().shards_owned(), 0u);
  ExpectExact();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

// Ps 0 and 1 are in one zone, ps 2 and 3 in another.
class ZonesTest : public PushingFixture {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartCluster(/*servers=*/4, {"coordinator.lease_ms=2000"}, /*own_disks=*/true,
                                         /*replicas=*/2, {"east", "east", "west", "west"}));
    ASSERT_NO_FATAL_FAILURE(AwaitAllInSync());
    ASSERT_NO_FATAL_FAILURE(StartPushing());
  }
};

TEST_F(ZonesTest, AWholeZoneMayDieForGoodAndItsCopiesComeBackToAnotherMachineThere) {
  ASSERT_TRUE(AwaitPushes(100));
  EXPECT_EQ(StatusOf(0).cluster().one_zone_size(), 0);
  cluster_->Kill(2);
  cluster_->Kill(3);
  ASSERT_TRUE(AwaitPushes(100)) << "the other zone has a copy of every shard";
  ASSERT_TRUE(cluster_->DeleteDisk(2).ok());
  ASSERT_TRUE(cluster_->DeleteDisk(3).ok());
  ASSERT_TRUE(Await([this] { return StatusOf(0).cluster().one_zone_size() == 1 && AllInSync(); }));
  EXPECT_THAT(StatusOf(0).cluster().one_zone(0), testing::HasSubstr("zone east has both copies of 16 shards"));
  ASSERT_TRUE(cluster_->Start(2).ok());
  ASSERT_TRUE(Await([this] {
    return cluster_->Serves(2) && StatusOf(0).cluster().one_zone_size() == 0 && AllInSync();
  })) << StatusOf(0).cluster().DebugString();
  // So that the zone that was left may die now, but for the coordinator.
  ASSERT_TRUE(AwaitPushes(100));
  cluster_->Kill(1);
  ASSERT_TRUE(AwaitPushes(100));
  ExpectExact();
}

// Four ps, and three copies of each shard.
class ThreeCopiesTest : public PushingFixture {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartCluster(/*servers=*/4, {"coordinator.lease_ms=2000", "cluster.in_sync_min=2"},
                                         /*own_disks=*/true, /*replicas=*/3));
    ASSERT_NO_FATAL_FAILURE(AwaitAllInSync());
    ASSERT_NO_FATAL_FAILURE(StartPushing());
  }
  // Whether these own all shards, and each of them has another copy at one of them.
  bool OnlyTheseHoldAll(const std::vector<uint32_t>& servers) {
    uint32_t owned = 0;
    for (const uint32_t server : servers) {
      const v1::StatusResponse status = StatusOf(server);
      owned += status.server().shards_owned();
      if (!status.has_replication() || status.replication().shards_alone() > 0) return false;
    }
    return owned == kShards;
  }
};

TEST_F(ThreeCopiesTest, AnyTwoMayDieForGoodAtOnce) {
  ASSERT_TRUE(AwaitPushes(100));
  // Ps 0 serves the coordinator.
  for (const auto& [one, other] : {std::pair(1u, 2u), {2u, 3u}, {3u, 1u}}) {
    cluster_->Kill(one);
    cluster_->Kill(other);
    ASSERT_TRUE(cluster_->DeleteDisk(one).ok());
    ASSERT_TRUE(cluster_->DeleteDisk(other).ok());
    ASSERT_TRUE(Await([&, one = one, other = other] {
      return OnlyTheseHoldAll({0, 6 - one - other});
    })) << "the two that are left have a copy of every shard";
    ASSERT_TRUE(AwaitPushes(100)) << "and follow each other";
    ASSERT_TRUE(cluster_->Start(one).ok());
    ASSERT_TRUE(cluster_->Start(other).ok());
    ASSERT_TRUE(AwaitPushes(100));
    ASSERT_TRUE(Await([&, one = one, other = other] {
      return cluster_->Serves(one) && cluster_->Serves(other) && AllInSync();
    })) << StatusOf(0).cluster().DebugString();
    ExpectReplicasEqual();
  }
  ExpectExact();
}

TEST_F(ThreeCopiesTest, OfThreeOneMayDieAndPushesWantTwoCopiesAllTheSame) {
  ASSERT_TRUE(AwaitPushes(50));
  cluster_->Kill(2);
  cluster_->Kill(3);
  ASSERT_TRUE(cluster_->Start(2).ok());
  // With three ps each of them has a copy of every shard.
  ASSERT_TRUE(Await([this] {
    uint32_t owned = 0, in_sync = 0;
    for (uint32_t server = 0; server < 3; ++server) {
      if (!cluster_->Serves(server)) return false;
      const v1::StatusResponse status = StatusOf(server);
      owned += status.server().shards_owned();
      in_sync += status.replication().shards_in_sync();
    }
    return owned == kShards && in_sync == kShards;
  }));
  cluster_->Kill(2);
  ASSERT_TRUE(Await([this] { return OnlyTheseHoldAll({0, 1}); }));
  ASSERT_TRUE(AwaitPushes(200)) << "with one copy they would be refused";
  ASSERT_TRUE(cluster_->Start(2).ok());
  ASSERT_TRUE(cluster_->Start(3).ok());
  ASSERT_TRUE(Await([this] { return cluster_->Serves(2) && cluster_->Serves(3) && AllInSync(); }));
  ExpectExact();
  ExpectReplicasEqual();
}

// Two ps, and an acknowledgement wants both.
class TwoCopiesTest : public PushingFixture {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(StartCluster(/*servers=*/2, {"coordinator.lease_ms=2000", "cluster.in_sync_min=2"}));
    ASSERT_NO_FATAL_FAILURE(AwaitAllInSync());
    ASSERT_NO_FATAL_FAILURE(StartPushing());
  }
  // Whether the ps refuses pushes to all shards, and says so.
  bool RefusesAll(uint32_t server) {
    const v1::StatusResponse status = StatusOf(server);
    return std::any_of(status.waits().begin(), status.waits().end(), [](const v1::WaitStatus& wait) {
      return absl::StrContains(wait.what(), "cluster.in_sync_min") && wait.shards_size() == kShards;
    });
  }
};

TEST_F(TwoCopiesTest, WhileOneIsGoneNoPushIsAcknowledgedAndAllAreWhenItIsBack) {
  ASSERT_TRUE(AwaitPushes(50));
  for (const bool keeps_folder : {true, false}) {
    cluster_->Kill(1);
    ASSERT_TRUE(Await([this] { return RefusesAll(0); }));
    const uint64_t acknowledged_alone = acknowledged();
    const uint64_t refused = StatusOf(0).server().pushes_refused();
    ASSERT_TRUE(Await([&] { return StatusOf(0).server().pushes_refused() > refused + 2; })) << "nobody tries again";
    EXPECT_EQ(acknowledged(), acknowledged_alone);
    if (!keeps_folder) std::filesystem::remove_all(cluster_->DataFolder(1));
    ASSERT_TRUE(cluster_->Start(1).ok());
    ASSERT_TRUE(Await([this] { return cluster_->Listens(1) && AllInSync(); }));
    ASSERT_TRUE(AwaitPushes(50));
  }
  ExpectExact();
  ExpectReplicasEqual();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

}  // namespace
}  // namespace lodestone
