// Moves in Membership, with replicas: a shard has a learner beside its follower, which takes the follower's place.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/saved_state.h"
#include "tests/server/coordinator/moving_members.h"

namespace lodestone::server {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using ReplicatedMovesTest = ReplicatedMovingMembers;

TEST_F(ReplicatedMovesTest, TheNewOwnerLearnsFirstThenFollowsInThePlaceOfTheFollowerAndTheFormerOwnerFollowsIt) {
  const uint32_t third = Third(0), follower = Followers()[0];
  const auto planned = Move({0}, third);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(planned->planned(), 1);
  EXPECT_EQ(Learners()[0], third + 1);
  EXPECT_EQ(Followers()[0], follower) << "it counts all the time";
  EXPECT_TRUE(InSync(0));
  EXPECT_EQ(Handover(0), 0);
  EXPECT_TRUE(LearnerHasAll(0));
  EXPECT_EQ(Followers()[0], third + 1);
  EXPECT_TRUE(InSync(0));
  EXPECT_THAT(Learners(), Each(0));
  EXPECT_EQ(Owners()[0], 0) << "it answers for it still";
  EXPECT_TRUE(GiveUp(0));
  EXPECT_EQ(Owners()[0], third);
  EXPECT_EQ(Followers()[0], 1) << "the former owner";
  EXPECT_FALSE(InSync(0)) << "until it has what the new one acknowledges";
  EXPECT_THAT(members_->Status().moves(), IsEmpty());
}

TEST_F(ReplicatedMovesTest, AServerThatTakesAPlaceThatWasKeptHoldsItsPartOnceItMay) {
  Membership::Options options = Options(2);
  options.servers_at_start = 2;
  members_ = std::make_unique<Membership>(options);
  for (const uint32_t server : {0, 1}) Join(server);
  EXPECT_THAT(Owners(), ElementsAre(0, 1, 0, 1, 0, 1));
  EXPECT_THAT(Followers(), ElementsAre(2, 1, 2, 1, 2, 1));
  SyncFollowers();
  EXPECT_THAT(members_->Status().moves(), IsEmpty());
  Join(2);
  EXPECT_THAT(members_->Status().moves(), IsEmpty());
  ASSERT_TRUE(Drain(2, /*undo=*/true).ok());
  ASSERT_TRUE(Level().ok());
  FinishAll();
  for (uint32_t server = 0; server < kMoveServers; ++server) {
    EXPECT_EQ(std::count(Owners().begin(), Owners().end(), server), 2) << "ps " << server;
    EXPECT_EQ(HeldBy(server), 4) << "ps " << server;
  }
}

// A ps 0 once refused to start from a checkpoint that was written while a shard had a learner.
TEST_F(ReplicatedMovesTest, WhatACheckpointKeepsOfAStateWithLearnersIsTaken) {
  ASSERT_TRUE(Move({0}, Third(0)).ok());
  ASSERT_TRUE(Drain(1).ok());
  ASSERT_TRUE(members_->shards().HasLearners());
  v1::CoordinatorState state = members_->SaveState();
  state.mutable_ranges()->set_leased_again(3);
  state.mutable_validations()->set_claimed(4);
  state.mutable_order()->set_orders(5);
  const v1::CoordinatorState kept = KeptOf(state);
  EXPECT_EQ(kept.epoch(), members_->shards().epoch());
  EXPECT_EQ(kept.next_incarnation(), state.next_incarnation());
  EXPECT_EQ(kept.ranges().leased_again(), 3u);
  EXPECT_EQ(kept.validations().claimed(), 4u);
  EXPECT_EQ(kept.order().orders(), 5u);
  EXPECT_TRUE(kept.owners_unknown());
  members_ = std::make_unique<Membership>(Options(2));
  const absl::Status restored = members_->Restore(KeptOf(members_->SaveState()));
  EXPECT_TRUE(restored.ok()) << restored;
  EXPECT_FALSE(members_->shards().mapped());
}

TEST_F(ReplicatedMovesTest, AServerThatIsToComeFollowsNothingInTheFirstMapWhateverItsZone) {
  Membership::Options options = Options(2);
  options.servers_at_start = 2;
  members_ = std::make_unique<Membership>(options);
  zones_ = {"a", "a", "b"};
  for (const uint32_t server : {0, 2, 1}) Join(server);
  EXPECT_EQ(HeldBy(2), 0);
  EXPECT_THAT(members_->Status().moves(), IsEmpty());
}

TEST_F(ReplicatedMovesTest, AShardThatMovesToItsFollowerNeedsNoCopy) {
  const uint32_t follower = Followers()[0] - 1;
  ASSERT_TRUE(Move({0}, follower).ok());
  EXPECT_THAT(Learners(), Each(0));
  EXPECT_TRUE(GiveUp(0));
  EXPECT_EQ(Owners()[0], follower);
  EXPECT_EQ(Followers()[0], 1);
}

TEST_F(ReplicatedMovesTest, ALearnerThatIsNotTheOneOrHasNotAllCountsForNothing) {
  ASSERT_TRUE(Move({0}, Third(0)).ok());
  const uint32_t learner = Learners()[0] - 1, follower = Followers()[0];
  EXPECT_FALSE(Report(0, lives_[learner] + 1000, true)) << "another life";
  EXPECT_TRUE(Report(0, lives_[learner], false));
  EXPECT_EQ(Followers()[0], follower);
  EXPECT_TRUE(InSync(0)) << "nothing is said of the follower";
  EXPECT_EQ(Learners()[0], learner + 1) << "it may have all later";
}

TEST_F(ReplicatedMovesTest, WhenTheOwnerDiesTheFollowerOwnsTheShardAndTheLearnerLearnsFromIt) {
  const uint32_t third = Third(0), follower = Followers()[0] - 1;
  ASSERT_TRUE(Move({0}, third).ok());
  LetExpire(0);
  EXPECT_EQ(Owners()[0], follower);
  EXPECT_NE(Learners()[0], Followers()[0]);
  Join(0);
  FinishAll();
  EXPECT_EQ(Owners()[0], third);
  EXPECT_TRUE(InSync(0));
}

TEST_F(ReplicatedMovesTest, WhenTheLearnerDiesNothingOfTheShardChanges) {
  const uint32_t third = Third(0), follower = Followers()[0];
  ASSERT_TRUE(Move({0}, third).ok());
  LetExpire(third);
  EXPECT_THAT(Learners(), Each(0));
  EXPECT_EQ(Owners()[0], 0);
  EXPECT_EQ(Followers()[0], follower);
  EXPECT_TRUE(InSync(0));
}

TEST_F(ReplicatedMovesTest, WhenTheNewOwnerDiesBeforeItIsGivenTheShardTheOwnerKeepsIt) {
  const uint32_t third = Third(0);
  ASSERT_TRUE(Move({0}, third).ok());
  ASSERT_TRUE(LearnerHasAll(0));
  ASSERT_GT(Handover(0), 0);
  LetExpire(third);
  EXPECT_EQ(Handover(0), 0);
  EXPECT_EQ(Owners()[0], 0);
  EXPECT_FALSE(InSync(0));
  EXPECT_TRUE(members_->shards().Route().ok());
}

// It gave the shard up with everything that was acknowledged, and the new owner acknowledges nothing before it is told.
TEST_F(ReplicatedMovesTest, TheFormerOwnerTakesTheShardBackWhenTheNewOneDiesBeforeItIsTold) {
  const uint32_t follower = Followers()[0] - 1;
  ASSERT_TRUE(Move({0}, follower).ok());
  ASSERT_TRUE(GiveUp(0));
  ASSERT_EQ(Owners()[0], follower);
  EXPECT_EQ(members_->shards().equal().HolderOf(0), 1);
  LetExpire(follower);
  EXPECT_EQ(Owners()[0], 0);
  EXPECT_FALSE(members_->shards().IsUnserved(0));
}

// The new owner's machine went down with the end of its log, which the former one has.
TEST_F(ReplicatedMovesTest, TheFormerOwnerTakesTheShardBackWhenTheNewOneComesBackWithoutTheEndOfItsLog) {
  const uint32_t follower = Followers()[0] - 1;
  ASSERT_TRUE(Move({0}, follower).ok());
  ASSERT_TRUE(GiveUp(0));
  v1::JoinRequest request = RequestOf(follower);
  request.mutable_data()->set_whole(false);
  ASSERT_TRUE(members_->Join(request).ok());
  EXPECT_EQ(Owners()[0], 0);
  EXPECT_FALSE(members_->shards().IsUnserved(0));
}

// The same, and another coordinator began in between.
TEST_F(ReplicatedMovesTest, AnotherCoordinatorKnowsThatANewOwnerWasNotToldYet) {
  const uint32_t follower = Followers()[0] - 1;
  ASSERT_TRUE(Move({0}, follower).ok());
  ASSERT_TRUE(GiveUp(0));
  const v1::CoordinatorState state = members_->SaveState();
  members_ = std::make_unique<Membership>(Options(2));
  ASSERT_TRUE(members_->Restore(state).ok());
  for (uint32_t server = 0; server < kMoveServers; ++server) {
    if (server != follower) Beat(server);
  }
  LetExpire(follower);
  v1::JoinRequest request = RequestOf(follower);
  request.mutable_data()->set_whole(false);
  ASSERT_TRUE(members_->Join(request).ok());
  EXPECT_EQ(Owners()[0], 0);
  EXPECT_FALSE(members_->shards().IsUnserved(0));
}

TEST_F(ReplicatedMovesTest, ANewOwnerThatWasToldMayHaveAcknowledgedMoreThanTheFormerOne) {
  const uint32_t follower = Followers()[0] - 1;
  ASSERT_TRUE(Move({0}, follower).ok());
  ASSERT_TRUE(GiveUp(0));
  v1::RouteRequest asks;
  asks.set_role(v1::ROLE_SERVER);
  asks.set_incarnation(lives_[follower]);
  ASSERT_TRUE(members_->Route(asks).ok());
  EXPECT_EQ(members_->shards().equal().HolderOf(0), 0);
  LetExpire(follower);
  EXPECT_EQ(Owners()[0], follower);
  EXPECT_TRUE(members_->shards().IsUnserved(0));
}

TEST_F(ReplicatedMovesTest, AMoveThatIsGivenUpLeavesTheFollowerWhereItWas) {
  const uint32_t follower = Followers()[0];
  ASSERT_TRUE(Move({0}, Third(0)).ok());
  const auto cancelled = Move({}, 0, /*cancel=*/true);
  ASSERT_TRUE(cancelled.ok());
  EXPECT_EQ(cancelled->cancelled(), 1);
  EXPECT_THAT(Learners(), Each(0));
  EXPECT_EQ(Followers()[0], follower);
  // Also one whose owner has been asked to give it up.
  ASSERT_TRUE(Move({0}, Third(0)).ok());
  ASSERT_TRUE(LearnerHasAll(0));
  ASSERT_GT(Handover(0), 0);
  ASSERT_TRUE(Move({0}, 0, /*cancel=*/true).ok());
  EXPECT_EQ(Handover(0), 0);
  EXPECT_EQ(Owners()[0], 0);
}

TEST_F(ReplicatedMovesTest, ADrainedServerHoldsNothingAndGetsItsPartAgain) {
  const auto drained = Drain(1);
  ASSERT_TRUE(drained.ok()) << drained.status();
  EXPECT_EQ(drained->shards_owned(), 2);
  EXPECT_EQ(drained->shards_following(), 2);
  FinishAll();
  EXPECT_EQ(HeldBy(1), 0);
  EXPECT_TRUE(members_->shards().IsComplete());
  EXPECT_THAT(Drain(2).status().message(),
              HasSubstr("as many other ps are to hold the shards of ps 2, and only 1 is there and does not drain"));
  ASSERT_TRUE(Drain(1, /*undo=*/true).ok());
  ASSERT_TRUE(Level().ok());
  FinishAll();
  for (uint32_t server = 0; server < kMoveServers; ++server) {
    EXPECT_EQ(std::count(Owners().begin(), Owners().end(), server), 2) << "ps " << server;
    EXPECT_EQ(HeldBy(server), 4) << "ps " << server;
  }
  EXPECT_TRUE(members_->shards().IsComplete());
  EXPECT_FALSE(members_->SaveState().levels_followers()) << "it is done";
}

TEST_F(ReplicatedMovesTest, ADrainedServerIsNobodysNewFollowerWhileAnotherCanBe) {
  ASSERT_TRUE(Drain(1).ok());
  FinishAll();
  LetExpire(2);
  for (ShardId shard = 0; shard < kMoveShards; ++shard) EXPECT_NE(Owners()[shard], 1) << shard;
  EXPECT_THAT(Followers(), Each(2)) << "there is no other: two copies are better than one";
  Join(2);
  FinishAll();
  EXPECT_EQ(HeldBy(1), 0);
}

// It never got rid of what it followed, which had to be in sync before another ps could follow that instead.
TEST_F(ReplicatedMovesTest, AServerWhoseDiskIsFullIsDrainedThoughItGetsInSyncWithNothing) {
  FillDisk(1);
  ASSERT_TRUE(Drain(1).ok());
  FinishAll();
  EXPECT_EQ(HeldBy(1), 0);
  EXPECT_TRUE(members_->shards().IsComplete());
  EXPECT_THAT(members_->Status().moves(), IsEmpty());
}

// Its shards were to go to the follower that lagged, which held up those that could have gone elsewhere too.
TEST_F(ReplicatedMovesTest, ADrainedServersShardsDoNotWaitForAFollowerThatLags) {
  ASSERT_EQ(Followers()[0], 2);
  FillDisk(1);
  ASSERT_TRUE(Drain(0).ok());
  FinishAll();
  EXPECT_EQ(Owners()[0], 2);
  EXPECT_EQ(Owners()[3], 2);
  EXPECT_TRUE(InSync(0)) << "the former owner follows it";
}

TEST_F(ReplicatedMovesTest, AMoveToAFollowerThatLagsSaysThatItWaitsForIt) {
  const uint32_t follower = Followers()[0] - 1;
  FillDisk(follower);
  ASSERT_TRUE(Move({0}, follower).ok());
  ASSERT_EQ(members_->Status().moves_size(), 1);
  EXPECT_EQ(members_->Status().moves(0).waiting_for(), "its follower to be in sync");
  EXPECT_EQ(Handover(0), 0);
}

TEST_F(ReplicatedMovesTest, AnotherCoordinatorGoesOnWithIt) {
  ASSERT_TRUE(Move({0}, Third(0)).ok());
  const uint32_t learner = Learners()[0];
  const auto restart = [this] {
    const v1::CoordinatorState state = members_->SaveState();
    members_ = std::make_unique<Membership>(Options(2));
    ASSERT_TRUE(members_->Restore(state).ok());
    for (uint32_t server = 0; server < kMoveServers; ++server) Beat(server);
  };
  restart();
  EXPECT_EQ(Learners()[0], learner);
  ASSERT_TRUE(LearnerHasAll(0));
  const uint64_t handover = Handover(0);
  ASSERT_GT(handover, 0);
  restart();
  EXPECT_EQ(Handover(0), handover);
  ASSERT_TRUE(GiveUp(0));
  EXPECT_EQ(Owners()[0], learner - 1);
}

TEST_F(ReplicatedMovesTest, WhereTheOwnerIsAwayAndNobodyElseHasAllThereIsNothingToLearn) {
  ASSERT_TRUE(Move({0}, Third(0)).ok());
  ASSERT_TRUE(Report(0, 0, /*in_sync=*/false));
  LetExpire(0);
  EXPECT_TRUE(members_->shards().IsUnserved(0));
  EXPECT_EQ(Learners()[0], 0) << "and the two ps are free for other moves";
  EXPECT_EQ(members_->Status().moves(0).waiting_for(), "ps 0, which does not serve it");
}

TEST_F(ReplicatedMovesTest, WhatFollowersAreToChangeIsSaidWithWhatItWaitsFor) {
  ASSERT_TRUE(Drain(1).ok());
  const auto of_followers = [this] {
    std::vector<v1::ShardMove> moves;
    const v1::ClusterStatus status = members_->Status();
    for (const v1::ShardMove& move : status.moves()) {
      if (move.of_follower()) moves.push_back(move);
    }
    return moves;
  };
  ASSERT_EQ(of_followers().size(), 2);
  EXPECT_EQ(of_followers()[0].from(), 1);
  EXPECT_TRUE(of_followers()[0].copying() || of_followers()[1].copying());
  const ShardId shard = of_followers()[0].shard();
  ASSERT_TRUE(Report(shard, 0, /*in_sync=*/false));
  LetExpire(3 - Owners()[shard] - 1);  // The only one that could follow it instead.
  ASSERT_FALSE(of_followers().empty());
  EXPECT_EQ(of_followers()[0].waiting_for(), "another ps that can follow it");
  Join(2);
  Join(0);
  SyncFollowers();
  FinishAll();
  EXPECT_TRUE(of_followers().empty());
  EXPECT_EQ(HeldBy(1), 0);
}

TEST_F(ReplicatedMovesTest, NothingMovesWhileAServerKnowsNoLearners) {
  ASSERT_TRUE(Move({0}, 1).ok());
  ASSERT_TRUE(Drain(1).ok());
  knows_learners_ = false;
  Join(2);
  EXPECT_TRUE(Move({0}, 0, /*cancel=*/true).ok()) << "what is planned can be given up";
  EXPECT_TRUE(Drain(1, /*undo=*/true).ok());
  EXPECT_THAT(Move({0}, 1).status().message(), HasSubstr("and ps 2 is"));
  EXPECT_THAT(Drain(1).status().message(), HasSubstr("and ps 2 is"));
}

class ReplicatedRebalancingTest : public ReplicatedMovesTest {
 protected:
  ReplicatedRebalancingTest()
      : ReplicatedMovesTest({.automatic = true,
                             .rule = {.difference = 0.25, .bytes_min = 1000, .traffic_bytes_per_second_min = 1000},
                             .sustained_ms = 2000,
                             .shard_rest_ms = 60'000}) {}

  // Time goes by, and all servers report the traffic of what they own.
  void Pass(int64_t ms) {
    for (; ms > 0; ms -= 500) {
      time_.AdvanceMs(500);
      for (uint32_t server = 0; server < kMoveServers; ++server) {
        v1::ServerProgress progress;
        for (ShardId shard = 0; shard < kMoveShards; ++shard) {
          if (Owners()[shard] != server) continue;
          v1::ShardLoad* const load = progress.add_shards();
          load->set_shard(shard);
          load->set_push_bytes_per_second(traffic_[shard]);
        }
        Beat(server, progress);
      }
    }
  }
  float TrafficOf(uint32_t server) const {
    float traffic = 0;
    for (ShardId shard = 0; shard < kMoveShards; ++shard) traffic += Owners()[shard] == server ? traffic_[shard] : 0;
    return traffic;
  }

  std::vector<float> traffic_ = std::vector<float>(kMoveShards, 1000);
};

TEST_F(ReplicatedRebalancingTest, ABusyServerGivesAShardToItsFollowerWithoutACopy) {
  const uint32_t follower = Followers()[0] - 1, third = Third(0);
  traffic_[0] = 1000, traffic_[3] = 3000;
  traffic_[follower] = 990, traffic_[follower + 3] = 10;
  traffic_[third] = 900, traffic_[third + 3] = 0;  // It has the least, but no copy.
  Pass(3000);
  EXPECT_THAT(Learners(), Each(0));
  ASSERT_EQ(members_->Status().moves_size(), 1);
  EXPECT_EQ(members_->Status().moves(0).shard(), 0);
  EXPECT_GT(Handover(0), 0);
  FinishAll();
  EXPECT_EQ(Owners()[0], follower);
  EXPECT_EQ(TrafficOf(0), 3000);
  Pass(10'000);
  EXPECT_THAT(members_->Status().moves(), IsEmpty());
  for (ShardId each = 0; each < kMoveShards; ++each) EXPECT_TRUE(InSync(each));
}

TEST_F(ReplicatedRebalancingTest, AServerThatMayOwnShardsAgainLearnsItsPart) {
  ASSERT_TRUE(Drain(2).ok());
  FinishAll();
  EXPECT_EQ(HeldBy(2), 0);
  Pass(61'000);  // What has moved rests.
  ASSERT_TRUE(Drain(2, /*undo=*/true).ok());
  Pass(3000);
  EXPECT_TRUE(members_->shards().HasLearners()) << "nobody has a copy there";
  FinishAll();
  EXPECT_EQ(TrafficOf(2), 2000);
  for (uint32_t server = 0; server < kMoveServers; ++server) EXPECT_EQ(HeldBy(server), 4) << server;
  Pass(3000);
  EXPECT_THAT(members_->Status().moves(), IsEmpty());
  EXPECT_THAT(members_->Status().rebalance(), HasSubstr("balanced"));
}

TEST_F(ReplicatedRebalancingTest, NothingIsJudgedWhileFollowersChange) {
  traffic_[0] = traffic_[3] = 3000;
  ASSERT_TRUE(Drain(2).ok());
  for (ShardId shard = 0; shard < kMoveShards; ++shard) {
    if (Handover(shard) == 0) continue;
    EXPECT_TRUE(GiveUp(shard));
  }
  EXPECT_EQ(std::count(Owners().begin(), Owners().end(), 2), 0);
  ASSERT_TRUE(members_->shards().HasLearners());
  Pass(20'000);
  const v1::ClusterStatus status = members_->Status();
  for (const v1::ShardMove& move : status.moves()) EXPECT_TRUE(move.of_follower()) << move.shard();
  EXPECT_THAT(status.rebalance(), HasSubstr("waits until the moves that are planned are done"));
}

}  // namespace
}  // namespace lodestone::server
