// Shards whose owner comes back without what they held, in Membership: they are nobody's until an operator decides.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/wire/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/saved_state.h"
#include "tests/server/coordinator/replicated_members.h"

namespace lodestone::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kMissingShards = 4;

// Two servers, that own shards 0 and 2, and 1 and 3.
class LostShardsTest : public ::testing::Test {
 protected:
  LostShardsTest() { Begin(/*replicas=*/2); }

  Membership::Options OptionsWith(uint32_t replicas) const {
    return ReplicatedOptions(2, kMissingShards, replicas, kLeaseMs, /*ends_with_server_0=*/false, &time_);
  }
  void Begin(uint32_t replicas) { members_ = std::make_unique<Membership>(OptionsWith(replicas)); }
  void Restart(uint32_t replicas = 2) {
    const v1::CoordinatorState state = members_->SaveState();
    Begin(replicas);
    const absl::Status restored = members_->Restore(state);
    ASSERT_TRUE(restored.ok()) << restored;
  }

  // A life of a server that keeps its data in `folder` (0: nowhere).
  void Join(uint32_t server, uint64_t folder, bool served = false) {
    v1::JoinRequest request = RequestOf(server);
    request.mutable_data()->set_folder(folder);
    request.mutable_data()->set_served(served);
    Join(server, request);
  }
  // The same where `generation` lives have begun in the folder.
  void JoinAfter(uint64_t generation, uint32_t server, uint64_t folder) {
    v1::JoinRequest request = RequestOf(server);
    request.mutable_data()->set_folder(folder);
    request.mutable_data()->set_generation(generation);
    Join(server, request);
  }
  // That many have begun, with the present one.
  void HasBegun(uint32_t server, uint64_t generation) {
    v1::HeartbeatRequest request;
    request.set_incarnation(lives_[server]);
    request.set_generation(generation);
    ASSERT_TRUE(members_->Heartbeat(request).ok());
  }
  v1::JoinRequest RequestOf(uint32_t server) const { return ServerJoin(server, kMissingShards); }
  void Join(uint32_t server, const v1::JoinRequest& request) {
    const auto joined = members_->Join(request);
    ASSERT_TRUE(joined.ok()) << joined.status();
    lives_[server] = joined->incarnation();
  }
  v1::HeartbeatResponse Beat(uint32_t server, const std::vector<std::pair<ShardId, Version>>& copies = {}) {
    v1::HeartbeatRequest request;
    request.set_incarnation(lives_[server]);
    request.mutable_server()->set_table_bytes(1);
    for (const auto& [shard, version] : copies) {
      v1::ShardCopy* const copy = request.add_copies();
      copy->set_shard(shard);
      copy->set_version(version);
    }
    const auto answer = members_->Heartbeat(request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : v1::HeartbeatResponse();
  }
  // Lets the lease of the server end, but not the other's.
  void LetExpire(uint32_t server) {
    Beat(1 - server);
    time_.AdvanceMs(kLeaseMs - 1);
    Beat(1 - server);
    time_.AdvanceMs(1);
    members_->TakeExpired();
  }
  void Sync(ShardId shard) {
    const v1::CoordinatorState state = members_->SaveState();
    v1::ReportSyncRequest request;
    request.set_incarnation(lives_[state.owners(shard)]);
    request.add_reports()->set_shard(shard);
    request.mutable_reports(0)->set_follower(lives_[state.followers(shard) - 1]);
    request.mutable_reports(0)->set_in_sync(true);
    const auto told = members_->ReportSync(request);
    ASSERT_TRUE(told.ok()) << told.status();
    ASSERT_TRUE(told->accepted(0));
  }
  absl::StatusOr<v1::PromoteResponse> Promote(uint32_t server) {
    v1::PromoteRequest request;
    request.set_server(server);
    return members_->Promote(request);
  }
  absl::StatusOr<v1::AcceptLossResponse> AcceptLoss(uint32_t server) {
    v1::AcceptLossRequest request;
    request.set_server(server);
    return members_->AcceptLoss(request);
  }
  ShardMap Map() const {
    const auto route = members_->shards().Route();
    EXPECT_TRUE(route.ok()) << route.status();
    return *ShardMap::FromProto(*route);
  }
  std::vector<std::string> Lines() const {
    const v1::ClusterStatus status = members_->Status();
    return {status.unserved().begin(), status.unserved().end()};
  }

  ManualTime time_;
  std::unique_ptr<Membership> members_;
  Incarnation lives_[2] = {};
};

TEST_F(LostShardsTest, AnOwnerThatComesBackWithAnotherFolderHasLostItsShardsUntilTheLossIsAccepted) {
  Join(0, 70);
  Join(1, 71);
  EXPECT_THAT(Map().LostBy(0), IsEmpty());
  LetExpire(0);
  Join(0, 72);
  EXPECT_THAT(Map().LostBy(0), ElementsAre(0, 2));
  EXPECT_THAT(Map().LostBy(1), IsEmpty());
  ASSERT_THAT(Lines(), SizeIs(1));
  EXPECT_THAT(Lines()[0], HasSubstr("2 of 4 shards are lost and not served: ps 0 was restarted without"));
  EXPECT_THAT(Lines()[0], HasSubstr("`psctl accept-loss 0`"));

  ASSERT_NO_FATAL_FAILURE(Restart());
  EXPECT_THAT(Map().LostBy(0), ElementsAre(0, 2)) << "the coordinator was started again";
  LetExpire(0);
  Join(0, 72);
  EXPECT_THAT(Map().LostBy(0), ElementsAre(0, 2)) << "the folder that it had found nothing in";

  EXPECT_TRUE(absl::IsFailedPrecondition(AcceptLoss(1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(AcceptLoss(2).status()));
  const ShardMap before = Map();
  const auto accepted = AcceptLoss(0);
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  EXPECT_EQ(accepted->shards(), 2);
  EXPECT_EQ(accepted->unserved(), 0);
  EXPECT_THAT(Map().LostBy(0), IsEmpty());
  EXPECT_GT(Map().epoch(), before.epoch());
  EXPECT_EQ(Map().TermOf(0), Map().epoch());
  EXPECT_THAT(Lines(), IsEmpty());
  LetExpire(0);
  Join(0, 72);
  EXPECT_THAT(Map().LostBy(0), IsEmpty()) << "it has what it was accepted with";
}

TEST_F(LostShardsTest, AnOwnerThatComesBackWithItsFolderOrItsMemoryHasLostNothing) {
  Join(0, 70);
  v1::JoinRequest same = RequestOf(1);
  same.set_token(5);
  same.mutable_data()->set_folder(0);
  Join(1, same);
  LetExpire(0);
  Join(0, 70, /*served=*/true);
  EXPECT_THAT(Map().LostBy(0), IsEmpty());
  Beat(1);
  LetExpire(1);
  Join(1, same);  // It had lost its lease.
  EXPECT_THAT(Map().LostBy(1), IsEmpty());
  Beat(1);
  LetExpire(1);
  same.set_token(6);
  Join(1, same);
  EXPECT_THAT(Map().LostBy(1), ElementsAre(1, 3)) << "it keeps nothing, and is another process";
}

TEST_F(LostShardsTest, AnOwnerThatFindsItsFormerFolderHasFoundItsShardsAgain) {
  Join(0, 70);
  Join(1, 71);
  LetExpire(0);
  Join(0, 72);
  ASSERT_THAT(Map().LostBy(0), ElementsAre(0, 2));
  LetExpire(0);
  const uint64_t before = Map().epoch();
  Join(0, 70, /*served=*/true);
  EXPECT_THAT(Map().LostBy(0), IsEmpty());
  EXPECT_GT(Map().epoch(), before);
}

// The folder that was put back had the same identity, and was served as it was.
TEST_F(LostShardsTest, AnOlderCopyOfTheFolderLacksTheShardsUntilTheNewestIsBack) {
  for (const uint32_t replicas : {1, 2}) {
    Begin(replicas);
    JoinAfter(3, 0, 70);
    JoinAfter(3, 1, 71);
    HasBegun(0, 4);
    ASSERT_NO_FATAL_FAILURE(Restart(replicas));
    Beat(0);
    LetExpire(0);
    JoinAfter(3, 0, 70);
    EXPECT_THAT(Map().LostBy(0), ElementsAre(0, 2));
    EXPECT_THAT(Map().LostBy(1), IsEmpty());
    ASSERT_THAT(Lines(), SizeIs(1));
    EXPECT_THAT(Lines()[0], HasSubstr("2 of 4 shards are lost and not served: ps 0 was restarted with another copy"));
    EXPECT_THAT(Lines()[0], HasSubstr("`psctl accept-loss 0`"));
    EXPECT_THAT(members_->TakeFailovers().back(), HasSubstr("lost 2 of its shards: it has joined with another copy"));
    LetExpire(0);
    JoinAfter(3, 0, 70);
    EXPECT_THAT(Map().LostBy(0), ElementsAre(0, 2)) << "it was started again";
    ASSERT_NO_FATAL_FAILURE(Restart(replicas));
    Beat(0);
    LetExpire(0);
    JoinAfter(3, 0, 70);
    EXPECT_THAT(Map().LostBy(0), ElementsAre(0, 2)) << "the coordinator was, too";
    LetExpire(0);
    JoinAfter(4, 0, 70);
    EXPECT_THAT(Map().LostBy(0), IsEmpty());
    EXPECT_THAT(Lines(), IsEmpty());
  }
}

TEST_F(LostShardsTest, AnOlderCopyOfTheFolderIsServedOnceTheLossIsAccepted) {
  JoinAfter(4, 0, 70);
  JoinAfter(4, 1, 71);
  LetExpire(0);
  JoinAfter(2, 0, 70);
  ASSERT_THAT(Map().LostBy(0), ElementsAre(0, 2));
  ASSERT_TRUE(AcceptLoss(0).ok());
  EXPECT_THAT(Map().LostBy(0), IsEmpty());
  LetExpire(0);
  JoinAfter(2, 0, 70);
  EXPECT_THAT(Map().LostBy(0), IsEmpty()) << "it has what it was accepted with";
}

// Regression: the newest folder, that was mounted again after an older copy of it had been accepted and served from for
// a while, was served as if nothing had been acknowledged meanwhile.
TEST_F(LostShardsTest, TheFormerFolderLacksWhatWasAcknowledgedSinceAnOlderCopyOfItWasAccepted) {
  JoinAfter(4, 0, 70);
  JoinAfter(10, 1, 71);
  HasBegun(1, 11);
  LetExpire(1);
  JoinAfter(7, 1, 71);
  ASSERT_THAT(Map().LostBy(1), ElementsAre(1, 3));
  ASSERT_TRUE(AcceptLoss(1).ok());
  HasBegun(1, 8);
  LetExpire(1);
  JoinAfter(11, 1, 71);
  EXPECT_THAT(Map().LostBy(1), ElementsAre(1, 3));
  ASSERT_THAT(Lines(), SizeIs(1));
  EXPECT_THAT(Lines()[0], HasSubstr("with another copy of its folder than it served from last"));
  ASSERT_NO_FATAL_FAILURE(Restart());
  LetExpire(1);
  JoinAfter(11, 1, 71);
  EXPECT_THAT(Map().LostBy(1), ElementsAre(1, 3)) << "it was started again";
  LetExpire(1);
  JoinAfter(8, 1, 71);
  EXPECT_THAT(Map().LostBy(1), IsEmpty()) << "it is back with what it served from last";
  HasBegun(1, 9);
  LetExpire(1);
  JoinAfter(10, 1, 71);
  EXPECT_THAT(Map().LostBy(1), IsEmpty()) << "its last life may have begun unheard";
}

TEST_F(LostShardsTest, AnOlderCopyOfAFormerFolderHasNotWhatWasLostWithThat) {
  JoinAfter(4, 0, 70);
  JoinAfter(4, 1, 71);
  LetExpire(0);
  JoinAfter(0, 0, 72);
  ASSERT_THAT(Map().LostBy(0), ElementsAre(0, 2));
  LetExpire(0);
  JoinAfter(3, 0, 70);
  EXPECT_THAT(Map().LostBy(0), ElementsAre(0, 2));
  LetExpire(0);
  JoinAfter(4, 0, 70);
  EXPECT_THAT(Map().LostBy(0), IsEmpty());
}

TEST_F(LostShardsTest, StartsThatFailAndServersThatJoinAgainHaveNoOlderFolder) {
  JoinAfter(0, 1, 71);
  v1::JoinRequest same = RequestOf(0);
  same.set_token(5);
  same.mutable_data()->set_folder(70);
  same.mutable_data()->set_generation(0);
  Join(0, same);
  HasBegun(0, 1);
  LetExpire(0);
  Join(0, same);  // It had lost its lease, and says what it began with.
  EXPECT_THAT(Map().LostBy(0), IsEmpty());
  for (uint64_t token = 6; token < 200; ++token) {  // Each is killed before it serves.
    v1::JoinRequest next = same;
    next.set_token(token);
    next.mutable_data()->set_generation(1);
    Join(0, next);
    ASSERT_THAT(Map().LostBy(0), IsEmpty());
  }
  LetExpire(0);
  JoinAfter(0, 0, 70);
  EXPECT_THAT(Map().LostBy(0), ElementsAre(0, 2)) << "the life that joined again had begun";
}

TEST_F(LostShardsTest, AServerThatDoesNotSayHowManyLivesBeganIsTakenToHaveItsNewestFolder) {
  JoinAfter(4, 0, 70);
  JoinAfter(4, 1, 71);
  LetExpire(0);
  Join(0, 70, /*served=*/true);  // Of an older version.
  EXPECT_THAT(Map().LostBy(0), IsEmpty());
  LetExpire(0);
  JoinAfter(1, 0, 70);
  EXPECT_THAT(Map().LostBy(0), IsEmpty()) << "what it had before is not known";
}

TEST_F(LostShardsTest, ACopyOfLostShardsCanBePromotedAndNotOneThatNobodyHolds) {
  Join(0, 70);
  Join(1, 71);
  LetExpire(0);
  EXPECT_TRUE(Beat(1).wants_copies());
  Join(0, 72);
  EXPECT_TRUE(absl::IsFailedPrecondition(Promote(1).status())) << "it holds no copy";
  Beat(1, {{0, 812}, {2, 700}});
  ASSERT_THAT(Lines(), SizeIs(1));
  EXPECT_THAT(Lines()[0], HasSubstr("`psctl promote 1` makes ps 1 their owner, which holds copies of 2 of them, up to "
                                    "version 812"));
  const auto promoted = Promote(1);
  ASSERT_TRUE(promoted.ok()) << promoted.status();
  EXPECT_EQ(promoted->shards(), 2);
  EXPECT_EQ(promoted->unserved(), 0);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Map().FollowedBy(0), ElementsAre(0, 1, 2, 3));
  EXPECT_FALSE(Map().InSync(0));
  EXPECT_EQ(Map().TermOf(0), Map().epoch());
  EXPECT_FALSE(Beat(1).wants_copies());
  Beat(1, {{0, 812}});
  EXPECT_TRUE(absl::IsFailedPrecondition(Promote(1).status())) << "all is served";
}

TEST_F(LostShardsTest, ACopyCanBePromotedWhoseOwnerIsGoneForGood) {
  Join(0, 70);
  Join(1, 71);
  LetExpire(0);
  ASSERT_THAT(Lines(), IsEmpty()) << "nobody has a copy";
  Beat(1, {{0, 3}, {1, 9}});
  ASSERT_THAT(Lines(), SizeIs(1));
  EXPECT_THAT(Lines()[0], HasSubstr("2 of 4 shards are not served: ps 0 is away"));
  const auto promoted = Promote(1);
  ASSERT_TRUE(promoted.ok()) << promoted.status();
  EXPECT_EQ(promoted->shards(), 1);
  EXPECT_EQ(promoted->unserved(), 1);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 3));
}

TEST_F(LostShardsTest, ShardsOfALiveOwnerAreNeverPromotedByAnOperator) {
  Join(0, 70);
  Join(1, 71);
  Beat(1, {{0, 3}, {2, 9}});
  EXPECT_TRUE(absl::IsFailedPrecondition(Promote(1).status()));
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 2));
}

TEST_F(LostShardsTest, WhatAFollowerInSyncHasTakenOverIsNotLostWithItsFormerOwner) {
  Join(0, 70);
  Join(1, 71);
  Sync(0);
  LetExpire(0);
  Join(0, 72);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 3));
  EXPECT_THAT(Map().LostBy(0), ElementsAre(2));
}

TEST_F(LostShardsTest, ACoordinatorThatHasLostItsStateTrustsNoOwnerWhereShardsMove) {
  Join(0, 70);
  Join(1, 71, /*served=*/true);
  EXPECT_THAT(Map().LostBy(0), ElementsAre(0, 2));
  EXPECT_THAT(Map().LostBy(1), ElementsAre(1, 3));
  ASSERT_TRUE(AcceptLoss(1).ok());
  Beat(1, {{0, 5}, {2, 5}});
  ASSERT_TRUE(Promote(1).ok());
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Lines(), IsEmpty());
}

// As CoordinatorHost takes it from a checkpoint.
TEST_F(LostShardsTest, ACoordinatorThatKnowsOnlyWhatACheckpointKeptDealsOutNothingThatServersServed) {
  Join(0, 70);
  Join(1, 71);
  ASSERT_NO_FATAL_FAILURE(Sync(1));
  LetExpire(1);
  ASSERT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2));
  const v1::CoordinatorState kept = KeptOf(members_->SaveState());
  Begin(/*replicas=*/2);
  ASSERT_TRUE(members_->Restore(kept).ok());
  ASSERT_NO_FATAL_FAILURE(Restart()) << "before all have joined";
  Join(0, 70, /*served=*/true);  // It still runs, and has shard 1.
  Join(1, 71, /*served=*/true);
  EXPECT_GT(Map().epoch(), kept.epoch());
  EXPECT_THAT(Map().LostBy(0), ElementsAre(0, 2));
  EXPECT_THAT(Map().LostBy(1), ElementsAre(1, 3));
  ASSERT_NO_FATAL_FAILURE(Restart());
  Beat(0, {{1, 12}});
  ASSERT_THAT(Lines(), SizeIs(2));
  EXPECT_THAT(Lines()[1], HasSubstr("the coordinator has lost its state"));
  EXPECT_THAT(Lines()[1], HasSubstr("`psctl promote 0` makes ps 0 their owner, which holds copies of 1 of them"));
  EXPECT_THAT(Lines()[1], HasSubstr("`psctl accept-loss 1`"));
  ASSERT_TRUE(AcceptLoss(0).ok());
  ASSERT_TRUE(Promote(0).ok());
  ASSERT_TRUE(AcceptLoss(1).ok());
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2));
  EXPECT_THAT(Lines(), IsEmpty());
}

TEST_F(LostShardsTest, ACoordinatorThatKnowsOnlyWhatACheckpointKeptDealsOutWhatNoServerHasServed) {
  v1::CoordinatorState kept = members_->SaveState();
  kept.set_epoch(7);
  kept.set_owners_unknown(true);
  ASSERT_TRUE(members_->Restore(kept).ok());
  Join(0, 70);
  Join(1, 71);
  EXPECT_THAT(Map().LostBy(0), IsEmpty());
  EXPECT_THAT(Map().LostBy(1), IsEmpty());
}

TEST_F(LostShardsTest, ACoordinatorThatHasLostItsStateTrustsOwnersWithDataWhereShardsDoNotMove) {
  Begin(/*replicas=*/1);
  Join(0, 70);
  Join(1, 71, /*served=*/true);
  EXPECT_THAT(Map().LostBy(0), ElementsAre(0, 2));
  EXPECT_THAT(Map().LostBy(1), IsEmpty());
}

TEST_F(LostShardsTest, AClusterThatKeepsNothingBeginsAgainWithAFreshCoordinator) {
  Join(0, 0);
  Join(1, 0, /*served=*/true);  // It still runs.
  EXPECT_THAT(Map().LostBy(0), IsEmpty());
}

TEST_F(LostShardsTest, AServerOfAnOlderVersionIsTakenToHaveWhatItOwned) {
  Join(0, RequestOf(0));
  Join(1, 71);
  LetExpire(0);
  Join(0, 72);
  EXPECT_THAT(Map().LostBy(0), IsEmpty());
  LetExpire(0);
  Join(0, RequestOf(0));
  EXPECT_THAT(Map().LostBy(0), IsEmpty());
}

TEST_F(LostShardsTest, AServerIsToldHowManyShardsLackTheSecondCopyThatTheyCouldHave) {
  Join(0, 70);
  Join(1, 71);
  EXPECT_EQ(Beat(0).shards_to_sync(), 4);
  for (const ShardId shard : {0, 1, 2}) ASSERT_NO_FATAL_FAILURE(Sync(shard));
  EXPECT_EQ(Beat(1).shards_to_sync(), 1);
  EXPECT_FALSE(Beat(1).all_in_sync());
  ASSERT_NO_FATAL_FAILURE(Sync(3));
  EXPECT_EQ(Beat(1).shards_to_sync(), 0);
  EXPECT_TRUE(Beat(1).all_in_sync());
  LetExpire(1);
  EXPECT_EQ(Beat(0).shards_to_sync(), 0) << "there is nobody else";
  EXPECT_FALSE(Beat(0).all_in_sync());
  Join(1, 71, /*served=*/true);
  EXPECT_EQ(Beat(1).shards_to_sync(), 4);
}

}  // namespace
}  // namespace lodestone::server
