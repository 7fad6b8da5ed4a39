// Zones of servers in Membership: the two copies of a shard are in different ones wherever that can be.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"
#include "tests/server/coordinator/moving_members.h"

namespace lodestone::server {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

// Ps 0 is in zone a, ps 1 and 2 are in zone b.
class ZonesTest : public ReplicatedMovingMembers {
 protected:
  explicit ZonesTest(const Zones& zones = {"a", "b", "b"}) : ReplicatedMovingMembers({}, zones) {}

  // Shards whose copies are both in one zone.
  std::vector<ShardId> InOneZone() const {
    std::vector<ShardId> shards;
    for (ShardId shard = 0; shard < kMoveShards; ++shard) {
      const uint32_t follower = Followers()[shard];
      if (follower > 0 && zones_[Owners()[shard]] == zones_[follower - 1]) shards.push_back(shard);
    }
    return shards;
  }
  std::vector<std::string> Lines() const {
    const v1::ClusterStatus status = members_->Status();
    return {status.one_zone().begin(), status.one_zone().end()};
  }
};

TEST_F(ZonesTest, AShardIsFollowedInAnotherZoneThoughServersOfItsOwnHoldFewer) {
  EXPECT_THAT(Followers(), ElementsAre(2, 1, 1, 3, 1, 1));
  EXPECT_THAT(InOneZone(), IsEmpty());
  EXPECT_THAT(Lines(), IsEmpty());
  EXPECT_EQ(members_->Status().servers(2).zone(), "b");
}

TEST_F(ZonesTest, WhereTheOtherZoneIsGoneShardsAreFollowedInTheirOwnUntilItIsBack) {
  LetExpire(0);
  SyncFollowers();
  EXPECT_EQ(InOneZone().size(), kMoveShards);
  EXPECT_THAT(Lines(),
              ElementsAre("zone b has both copies of 6 shards: no ps of another zone is there that may hold one"));
  Join(0);
  EXPECT_THAT(Lines(), ElementsAre("zone b has both copies of 6 shards: one of each is to move to another zone"));
  EXPECT_THAT(members_->Status().moves(), Not(IsEmpty()));
  EXPECT_THAT(Learners(), Not(Each(0)));
  EXPECT_EQ(members_->shards().unserved(), 0);
  FinishAll();
  EXPECT_THAT(InOneZone(), IsEmpty());
  EXPECT_THAT(Lines(), IsEmpty());
  EXPECT_THAT(members_->Status().moves(), IsEmpty());
}

TEST_F(ZonesTest, AShardThatMovesWithinAZoneIsFollowedInAnotherOneAfterwards) {
  ASSERT_TRUE(Move({1}, 2).ok());
  ASSERT_TRUE(LearnerHasAll(1));
  ASSERT_TRUE(GiveUp(1));
  EXPECT_EQ(Owners()[1], 2);
  EXPECT_EQ(Followers()[1], 2) << "the former owner, for a while";
  EXPECT_THAT(Lines(), ElementsAre("zone b has both copies of 1 shard: one of each is to move to another zone"));
  SyncFollowers();
  FinishAll();
  EXPECT_EQ(Owners()[1], 2);
  EXPECT_EQ(Followers()[1], 1);
  EXPECT_THAT(Lines(), IsEmpty());
}

TEST_F(ZonesTest, LevellingLeavesCopiesInTheirZones) {
  const auto planned = Level();
  ASSERT_TRUE(planned.ok());
  EXPECT_EQ(planned->planned(), 0) << "ps 0 holds 6 copies and the others 3, as it is the only one of its zone";
  FinishAll();
  EXPECT_THAT(InOneZone(), IsEmpty());
  EXPECT_EQ(HeldBy(0), 6);
}

TEST_F(ZonesTest, AServerThatDrainsIsNotFollowedForTheSakeOfItsZone) {
  ASSERT_TRUE(Drain(0).ok());
  FinishAll();
  EXPECT_EQ(HeldBy(0), 0);
  EXPECT_EQ(InOneZone().size(), kMoveShards);
  EXPECT_THAT(Lines(),
              ElementsAre("zone b has both copies of 6 shards: no ps of another zone is there that may hold one"));
  EXPECT_THAT(members_->Status().moves(), IsEmpty());
  ASSERT_TRUE(Drain(0, /*undo=*/true).ok());
  FinishAll();
  EXPECT_THAT(InOneZone(), IsEmpty());
}

TEST_F(ZonesTest, AServerThatComesBackInAnotherZoneCountsThere) {
  zones_[1] = "a";
  LetExpire(1);
  Join(1);
  SyncFollowers();
  FinishAll();
  EXPECT_THAT(InOneZone(), IsEmpty());
  EXPECT_EQ(members_->Status().servers(1).zone(), "a");
}

TEST_F(ZonesTest, ZonesOutliveTheCoordinator) {
  const v1::CoordinatorState state = members_->SaveState();
  members_ = std::make_unique<Membership>(Options(2));
  ASSERT_TRUE(members_->Restore(state).ok());
  for (uint32_t server = 0; server < kMoveServers; ++server) Beat(server);
  ASSERT_TRUE(Move({1}, 2).ok());
  FinishAll();
  EXPECT_EQ(Owners()[1], 2);
  EXPECT_THAT(InOneZone(), IsEmpty());
}

TEST_F(ZonesTest, AZoneOfTooManyBytesIsRefused) {
  v1::JoinRequest request = ServerJoin(0, kMoveShards);
  request.set_zone(std::string(2000, 'z'));
  EXPECT_EQ(members_->Join(request).status().code(), absl::StatusCode::kInvalidArgument);
}

// Only ps 1 and 2 name a zone.
class SomeZonesTest : public ZonesTest {
 protected:
  SomeZonesTest() : ZonesTest({"", "b", "b"}) {}
};

TEST_F(SomeZonesTest, AServerThatNamesNoZoneSharesItWithNobody) {
  EXPECT_THAT(Followers(), ElementsAre(2, 1, 1, 3, 1, 1));
  EXPECT_THAT(Lines(), IsEmpty());
}

}  // namespace
}  // namespace lodestone::server
