// Moves in Membership, without replicas: what is planned, begun, handed over and given up.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"
#include "tests/server/coordinator/moving_members.h"

namespace lodestone::server {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

using ShardMovesTest = MovingMembers;

TEST_F(ShardMovesTest, AShardIsItsFollowersOnceThatIsInSyncAndTheOwnerHasGivenItUp) {
  const auto planned = Move({0}, 2);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(planned->planned(), 1);
  EXPECT_THAT(Followers(), ElementsAre(3, 0, 0, 0, 0, 0));
  EXPECT_THAT(Owners(), ElementsAre(0, 1, 2, 0, 1, 2)) << "until then it is served where it was";
  EXPECT_FALSE(ReportInSync(0, std::nullopt, members_->shards().epoch() + 1)) << "it was not asked to";
  EXPECT_TRUE(ReportInSync(0));
  EXPECT_THAT(Owners(), ElementsAre(0, 1, 2, 0, 1, 2)) << "it answers for it still";
  const uint64_t epoch = members_->shards().epoch();
  EXPECT_EQ(Handover(0), epoch);
  const auto route = members_->shards().Route();
  ASSERT_TRUE(route.ok());
  EXPECT_THAT(route->handovers(), ElementsAre(epoch, 0, 0, 0, 0, 0));
  EXPECT_EQ(members_->Status().moves(0).waiting_for(), "ps 0 to give it up");
  EXPECT_FALSE(ReportInSync(0, std::nullopt, epoch - 1)) << "asked before, and perhaps taken back since";
  EXPECT_TRUE(GiveUp(0));
  EXPECT_THAT(Owners(), ElementsAre(2, 1, 2, 0, 1, 2));
  EXPECT_THAT(Followers(), Each(0));
  EXPECT_EQ(members_->shards().terms()[0], epoch + 1);
  EXPECT_THAT(members_->Status().moves(), IsEmpty());
}

TEST_F(ShardMovesTest, ShardsThatGoTogetherChangeTheirOwnerTogether) {
  ASSERT_TRUE(Move({0, 3}, 1).ok());
  EXPECT_TRUE(ReportInSync(3));
  EXPECT_EQ(Handover(3), 0);
  EXPECT_TRUE(ReportInSync(0));
  EXPECT_EQ(Handover(3), Handover(0));
  EXPECT_TRUE(GiveUp(3));
  EXPECT_TRUE(GiveUp(0));
  EXPECT_THAT(Owners(), ElementsAre(1, 1, 2, 1, 1, 2));
}

TEST_F(ShardMovesTest, AReportFromBeforeTheShardMovedAwayAndBackCountsForNothing) {
  const uint64_t former = members_->shards().terms()[0];
  for (const uint32_t to : {1u, 0u}) {
    ASSERT_TRUE(Move({0}, to).ok());
    ASSERT_TRUE(MoveOver(0));
  }
  ASSERT_TRUE(Move({0}, 1).ok());
  EXPECT_FALSE(ReportInSync(0, former));
  EXPECT_EQ(Owners()[0], 0);
}

TEST_F(ShardMovesTest, ADrainedServersShardsGoToThoseThatOwnTheFewestAndNoneComesBack) {
  ASSERT_TRUE(Drain(1).ok());
  FinishMoves();
  EXPECT_THAT(Owners(), ElementsAre(0, 0, 2, 0, 2, 2));
  EXPECT_FALSE(Move({0}, 1).ok());
  ASSERT_TRUE(Level().ok());
  FinishMoves();
  EXPECT_THAT(Owners(), ElementsAre(0, 0, 2, 0, 2, 2));
  ASSERT_TRUE(Drain(1, /*undo=*/true).ok());
  ASSERT_TRUE(Level().ok());
  FinishMoves();
  for (uint32_t server = 0; server < kMoveServers; ++server) {
    EXPECT_EQ(std::count(Owners().begin(), Owners().end(), server), 2) << "ps " << server;
  }
}

TEST_F(ShardMovesTest, ACancelledMoveIsNotMade) {
  ASSERT_TRUE(Move({0}, 2).ok());
  const auto cancelled = Move({}, 0, /*cancel=*/true);
  ASSERT_TRUE(cancelled.ok());
  EXPECT_EQ(cancelled->cancelled(), 1);
  EXPECT_THAT(Followers(), Each(0));
  EXPECT_FALSE(ReportInSync(0)) << "server 2 follows no more";
  EXPECT_EQ(Owners()[0], 0);
}

TEST_F(ShardMovesTest, AnOwnerThatIsAwayHoldsUpNoOtherMove) {
  ASSERT_TRUE(Move({0}, 1).ok());
  LetExpire(0);
  EXPECT_EQ(Followers()[0], 0) << "its copy is given up";
  ASSERT_TRUE(Move({2}, 1).ok());
  EXPECT_EQ(Followers()[2], 2);
  ASSERT_TRUE(MoveOver(2));
  Join(0);
  EXPECT_EQ(Followers()[0], 2) << "the plan goes on";
}

// One that was cut off once answered for its shards beside their next owner.
TEST_F(ShardMovesTest, TheShardsOfAnOwnerThatEndsBeforeItHasGivenThemUpStayItsOwn) {
  ASSERT_TRUE(Move({0}, 1).ok());
  ASSERT_TRUE(ReportInSync(0));
  const uint64_t asked = Handover(0);
  LetExpire(0);
  EXPECT_EQ(Owners()[0], 0);
  EXPECT_EQ(Followers()[0], 0);
  EXPECT_EQ(Handover(0), 0);
  Join(0);
  EXPECT_EQ(Followers()[0], 2) << "the plan goes on";
  EXPECT_TRUE(ReportInSync(0));
  EXPECT_FALSE(ReportInSync(0, std::nullopt, asked)) << "it was asked anew";
  EXPECT_TRUE(GiveUp(0));
  EXPECT_EQ(Owners()[0], 1);
}

TEST_F(ShardMovesTest, AnOwnerTakesBackWhatItHasGivenUpWhenTheMoveEnds) {
  const auto asks = [this] {
    ASSERT_TRUE(Move({0}, 1).ok());
    ASSERT_TRUE(ReportInSync(0));
    ASSERT_GT(Handover(0), 0);
  };
  const auto taken_back = [this](uint64_t since) {
    return Handover(0) == 0 && Owners()[0] == 0 && members_->shards().epoch() > since;
  };
  asks();
  uint64_t asked = Handover(0);
  ASSERT_TRUE(Move({}, 0, /*cancel=*/true).ok());
  EXPECT_TRUE(taken_back(asked)) << "it was cancelled";
  EXPECT_FALSE(ReportInSync(0, std::nullopt, asked));
  asks();
  asked = Handover(0);
  LetExpire(1);
  EXPECT_TRUE(taken_back(asked)) << "its target has ended";
  Join(1);
  asks();
  asked = Handover(0);
  v1::ReportSyncRequest request;  // The follower does not confirm.
  request.set_incarnation(lives_[0]);
  request.add_reports()->set_shard(0);
  ASSERT_TRUE(members_->ReportSync(request).ok());
  EXPECT_TRUE(taken_back(asked)) << "its target counts no more";
}

TEST_F(ShardMovesTest, WhatAnOwnerIsAskedToGiveUpOutlivesTheCoordinator) {
  ASSERT_TRUE(Move({0}, 2).ok());
  ASSERT_TRUE(ReportInSync(0));
  const uint64_t asked = Handover(0);
  const v1::CoordinatorState state = members_->SaveState();
  members_ = std::make_unique<Membership>(Options(1));
  ASSERT_TRUE(members_->Restore(state).ok());
  EXPECT_EQ(Handover(0), asked);
  Beat(0);
  EXPECT_FALSE(GiveUp(0)) << "nothing was heard of its follower yet, which may be dead";
  EXPECT_EQ(Owners()[0], 0);
  Beat(2);
  EXPECT_TRUE(GiveUp(0));
  EXPECT_EQ(Owners()[0], 2);
}

TEST_F(ShardMovesTest, ARebalanceLeavesTheShardsOfAServerThatIsAway) {
  ASSERT_TRUE(Move({1, 2, 4, 5}, 0).ok());
  FinishMoves();
  EXPECT_THAT(Owners(), Each(0));
  LetExpire(0);
  const auto planned = Level();
  ASSERT_TRUE(planned.ok());
  EXPECT_EQ(planned->planned(), 0);
}

// Regression: shards of a server that a coordinator has not heard of since it began stayed where they were.
TEST_F(ShardMovesTest, ALevelCountsServersThatTheCoordinatorWillHearOf) {
  ASSERT_TRUE(Drain(1).ok());
  FinishMoves();
  const v1::CoordinatorState state = members_->SaveState();
  members_ = std::make_unique<Membership>(Options(1));
  ASSERT_TRUE(members_->Restore(state).ok());
  Beat(0);
  Beat(1);
  ASSERT_TRUE(Drain(1, /*undo=*/true).ok());
  const auto planned = Level();
  ASSERT_TRUE(planned.ok());
  EXPECT_EQ(planned->planned(), 2);
  Beat(2);
  FinishMoves();
  for (uint32_t server = 0; server < kMoveServers; ++server) {
    EXPECT_EQ(std::count(Owners().begin(), Owners().end(), server), 2) << "ps " << server;
  }
}

TEST_F(ShardMovesTest, PlansOutliveTheCoordinator) {
  ASSERT_TRUE(Move({0}, 2).ok());
  ASSERT_TRUE(Drain(1).ok());
  const v1::CoordinatorState state = members_->SaveState();
  members_ = std::make_unique<Membership>(Options(1));
  ASSERT_TRUE(members_->Restore(state).ok());
  for (uint32_t server = 0; server < kMoveServers; ++server) Beat(server);
  FinishMoves();
  EXPECT_EQ(Owners()[0], 2);
  EXPECT_EQ(std::count(Owners().begin(), Owners().end(), 1u), 0);
}

// Servers 0 and 1 begin, and there is a place for a third.
class KeptPlaceTest : public MovingMembers {
 protected:
  explicit KeptPlaceTest(const RebalanceOptions& rebalance = {}) : MovingMembers(rebalance) {
    Make();
    for (const uint32_t server : {0, 1}) Join(server);
  }
  void Make(uint32_t at_start = 2) {
    Membership::Options options = Options(1);
    options.servers_at_start = at_start;
    members_ = std::make_unique<Membership>(options);
  }
  void Restart() {
    const v1::CoordinatorState state = members_->SaveState();
    Make();
    ASSERT_TRUE(members_->Restore(state).ok());
  }
  int64_t OwnedBy(uint32_t server) const { return std::count(Owners().begin(), Owners().end(), server); }
  void ExpectPlaces(uint32_t expected, uint32_t kept) const {
    const v1::ClusterStatus status = members_->Status();
    EXPECT_EQ(status.servers_expected(), expected);
    EXPECT_EQ(status.places_kept(), kept);
  }
  // Whether a ps that joins may own shards.
  bool MayOwn(uint32_t server) {
    const bool may = Move({0}, server).ok();
    Move({0}, server, /*cancel=*/true).IgnoreError();
    return may;
  }
};

TEST_F(KeptPlaceTest, NobodyWaitsForAServerThatIsToCome) {
  EXPECT_TRUE(members_->shards().mapped());
  EXPECT_THAT(Owners(), ElementsAre(0, 1, 0, 1, 0, 1));
  ExpectPlaces(2, 1);
  Make();
  Join(0);
  EXPECT_EQ(members_->shards().Route().status().message(), "waiting for 1 of 2 servers: index 1 has not joined");
}

TEST_F(KeptPlaceTest, AServerThatComesOwnsItsPartOnceItMay) {
  ASSERT_TRUE(Level().ok());
  EXPECT_THAT(members_->Status().moves(), IsEmpty());
  EXPECT_TRUE(absl::IsFailedPrecondition(Drain(2, /*undo=*/true).status())) << "nobody is there";
  ASSERT_NO_FATAL_FAILURE(Restart());
  ExpectPlaces(2, 1);
  for (const uint32_t server : {0, 1}) Beat(server);
  Join(2);
  ExpectPlaces(3, 0);
  ASSERT_TRUE(Level().ok());
  EXPECT_THAT(members_->Status().moves(), IsEmpty()) << "it drains until an operator lets it own shards";
  ASSERT_TRUE(Drain(2, /*undo=*/true).ok());
  ASSERT_TRUE(Level().ok());
  FinishMoves();
  for (uint32_t server = 0; server < kMoveServers; ++server) EXPECT_EQ(OwnedBy(server), 2) << "ps " << server;
}

TEST_F(KeptPlaceTest, ThePlaceOfAServerThatWasDrainedAndHasEndedIsKept) {
  Join(2);
  ASSERT_TRUE(Drain(2, /*undo=*/true).ok());
  ASSERT_TRUE(Level().ok());
  FinishMoves();
  ASSERT_TRUE(Drain(2).ok());
  FinishMoves();
  ExpectPlaces(3, 0);
  EXPECT_FALSE(members_->Status().servers(2).out()) << "it lives";
  LetExpire(2);
  ExpectPlaces(2, 1);
  EXPECT_TRUE(members_->Status().servers(2).out());
  Join(2);
  ExpectPlaces(3, 0);
  EXPECT_FALSE(members_->Status().servers(2).out());
  EXPECT_FALSE(MayOwn(2)) << "it was drained";
}

TEST_F(KeptPlaceTest, WhoOwnsShardsCountsMoreThanThePlacesThatAreKeptNow) {
  Make(/*at_start=*/0);
  for (uint32_t server = 0; server < kMoveServers; ++server) Join(server);
  ASSERT_NO_FATAL_FAILURE(Restart());
  EXPECT_THAT(Owners(), ElementsAre(0, 1, 2, 0, 1, 2));
  for (uint32_t server = 0; server < kMoveServers; ++server) Beat(server);
  EXPECT_THAT(members_->Status().moves(), IsEmpty()) << "ps 2 does not drain";
}

TEST_F(KeptPlaceTest, WhereTheCoordinatorHasLostItsStateLaterServersMayHaveOwnedAny) {
  Make();
  Join(0);
  auto served = RequestOf(1);
  served.mutable_data()->set_served(true);
  ASSERT_TRUE(members_->Join(served).ok());
  EXPECT_EQ(members_->shards().unserved(), kMoveShards);
}

TEST_F(KeptPlaceTest, AServerThatTheCoordinatorShouldKnowKeepsWhatItHas) {
  for (const bool restarts : {false, true}) {
    if (restarts) {
      ASSERT_NO_FATAL_FAILURE(Restart());
    }
    const auto refused = members_->Join(RequestOf(2, /*shared=*/true));
    EXPECT_TRUE(absl::IsFailedPrecondition(refused.status()));
    EXPECT_THAT(std::string(refused.status().message()), ::testing::HasSubstr("its state was lost"));
    EXPECT_THAT(members_->Status().unserved(), ElementsAre(::testing::HasSubstr("what ps 2 has served before")));
  }
  // More servers at the start do not make it known.
  const v1::CoordinatorState state = members_->SaveState();
  Make(/*at_start=*/3);
  ASSERT_TRUE(members_->Restore(state).ok());
  EXPECT_FALSE(members_->Join(RequestOf(2, /*shared=*/true)).ok());
  auto in_memory = RequestOf(2, /*shared=*/true);
  in_memory.mutable_data()->set_folder(0);
  EXPECT_TRUE(members_->Join(in_memory).ok()) << "it has nothing to lose";
  EXPECT_THAT(members_->Status().unserved(), IsEmpty());
  Join(2, /*shared=*/true);  // It is known now.
}

TEST_F(KeptPlaceTest, AServerThatTheCoordinatorShouldKnowBringsItsCopiesWhileShardsAreLost) {
  Make();
  Join(0);
  ASSERT_TRUE(members_->Join(RequestOf(1, /*shared=*/true)).ok());
  ASSERT_TRUE(members_->shards().lost().any());
  EXPECT_TRUE(members_->Join(RequestOf(2, /*shared=*/true)).ok());
}

TEST_F(KeptPlaceTest, AnotherNumberOfServersAtTheStartCountsUntilThereIsAMap) {
  Make();
  Join(0);
  const v1::CoordinatorState state = members_->SaveState();
  Make(/*at_start=*/0);
  ASSERT_TRUE(members_->Restore(state).ok());
  for (const uint32_t server : {1, 2}) Join(server);
  Beat(0);
  EXPECT_THAT(Owners(), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(members_->Status().moves(), IsEmpty()) << "ps 2 does not drain";
}

TEST_F(KeptPlaceTest, AServerOfAClusterThatHasBegunAgainWithMorePlacesMayOwnShards) {
  v1::CoordinatorState fewer = members_->SaveState();
  fewer.set_servers(2);
  fewer.clear_draining();
  Make();
  ASSERT_TRUE(members_->Restore(fewer).ok());
  for (const uint32_t server : {0, 1}) Join(server, /*shared=*/true);
  Join(2, /*shared=*/true);
  EXPECT_EQ(members_->shards().unserved(), 0);
  EXPECT_TRUE(MayOwn(2));
}

class KeptPlaceWithRebalanceTest : public KeptPlaceTest {
 protected:
  KeptPlaceWithRebalanceTest() : KeptPlaceTest(RebalanceOptions{.automatic = true}) {}
};

TEST_F(KeptPlaceWithRebalanceTest, AServerThatComesMayOwnShardsAtOnceAndOneThatWasDrainedMayNot) {
  Join(2);
  EXPECT_TRUE(MayOwn(2));
  ASSERT_TRUE(Drain(2).ok());
  Join(2);
  EXPECT_FALSE(MayOwn(2));
}

TEST_F(KeptPlaceWithRebalanceTest, OneThatComesBeforeTheFirstMapMayStillOwnShardsWhenTheCoordinatorIsBack) {
  Make();
  for (const uint32_t server : {2, 0}) Join(server);
  ASSERT_NO_FATAL_FAILURE(Restart());
  EXPECT_FALSE(members_->shards().mapped());
  Join(1);
  for (const uint32_t server : {0, 2}) Beat(server);
  EXPECT_TRUE(MayOwn(2));
}

TEST_F(ShardMovesTest, ACoordinatorThatHasLostItsStateTakesNoFirstOwnerForGrantedWhereShardsHaveMoved) {
  members_ = std::make_unique<Membership>(Options(1));
  for (uint32_t server = 0; server < kMoveServers; ++server) Join(server, /*shared=*/true);
  EXPECT_EQ(members_->shards().unserved(), kMoveShards);
}

}  // namespace
}  // namespace lodestone::server
