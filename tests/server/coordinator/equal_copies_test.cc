// Owners and followers that end together, in Membership: the one that comes back with all that was acknowledged serves
// the shard, and nobody whose copy is not proved to have it.
#include "server/coordinator/equal_copies.h"

#include <memory>
#include <string>
#include <vector>

#include "common/wire/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"
#include "tests/server/coordinator/replicated_members.h"

namespace lodestone::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint32_t kEqualShards = 4;

// Two servers, that own shards 0 and 2, and 1 and 3; the other one has them too, in sync.
class EqualCopiesTest : public ::testing::Test {
 protected:
  EqualCopiesTest() {
    members_ = std::make_unique<Membership>(Options());
    for (const uint32_t server : {0, 1}) Join(server, kFirst);
    for (const uint32_t server : {0, 1}) AskRoute(server);
    for (ShardId shard = 0; shard < kEqualShards; ++shard) Report(shard, true);
  }

  Membership::Options Options() const {
    return ReplicatedOptions(2, kEqualShards, 2, kLeaseMs, /*ends_with_server_0=*/false, &time_);
  }
  void RestartCoordinator() {
    const v1::CoordinatorState state = members_->SaveState();
    members_ = std::make_unique<Membership>(Options());
    const absl::Status restored = members_->Restore(state);
    ASSERT_TRUE(restored.ok()) << restored;
  }

  enum Comes { kFirst, kWhole, kCutShort, kWithAnotherFolder, kAfterAnUnknownLife, kAfterAFailedStart, kAgain };
  void Join(uint32_t server, Comes comes) {
    v1::JoinRequest request = ServerJoin(server, kEqualShards);
    if (comes == kAfterAnUnknownLife || comes == kAfterAFailedStart) ++tokens_[server];
    request.set_predecessor(comes == kFirst ? 0 : 10 * (server + 1) + tokens_[server]);
    if (comes != kAgain) ++tokens_[server];
    request.set_token(10 * (server + 1) + tokens_[server]);
    request.mutable_data()->set_folder(comes == kWithAnotherFolder ? 90 + server : 70 + server);
    request.mutable_data()->set_served(comes != kFirst);
    if (comes != kFirst) request.mutable_data()->set_whole(comes != kCutShort);
    if (generation_ > 0) request.mutable_data()->set_generation(generation_);
    const auto joined = members_->Join(request);
    ASSERT_TRUE(joined.ok()) << joined.status();
    lives_[server] = joined->incarnation();
  }
  void Beat(uint32_t server) {
    v1::HeartbeatRequest request;
    request.set_incarnation(lives_[server]);
    EXPECT_TRUE(members_->Heartbeat(request).ok());
  }
  void AskRoute(uint32_t server) {
    v1::RouteRequest request;
    request.set_role(v1::ROLE_SERVER);
    request.set_incarnation(lives_[server]);
    EXPECT_TRUE(members_->Route(request).ok());
  }
  void Report(ShardId shard, bool in_sync) {
    const v1::CoordinatorState state = members_->SaveState();
    v1::ReportSyncRequest request;
    request.set_incarnation(lives_[state.owners(shard)]);
    request.add_reports()->set_shard(shard);
    if (in_sync) request.mutable_reports(0)->set_follower(lives_[state.followers(shard) - 1]);
    request.mutable_reports(0)->set_in_sync(in_sync);
    const auto told = members_->ReportSync(request);
    ASSERT_TRUE(told.ok()) << told.status();
    ASSERT_TRUE(told->accepted(0));
  }
  // The lease of `first` ends while the other one has some of its left.
  void LetExpire(uint32_t first) {
    Beat(first);
    time_.AdvanceMs(1);
    Beat(1 - first);
    time_.AdvanceMs(kLeaseMs - 1);
    members_->TakeExpired();
  }
  // Both leases end, that of `first` first, as their processes ended together.
  void LetBothExpire(uint32_t first) {
    LetExpire(first);
    time_.AdvanceMs(1);
    members_->TakeExpired();
  }
  // Server 0 owns all and the other one has it in sync; from now on they say how many lives have begun in their
  // folders.
  void TellGenerations() {
    generation_ = 4;
    LetBothExpire(1);
    Join(1, kCutShort);
    Join(0, kWhole);
    for (const uint32_t server : {0, 1}) AskRoute(server);
    for (ShardId shard = 0; shard < kEqualShards; ++shard) Report(shard, true);
    EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3));
  }
  // As clients see it.
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
  uint64_t tokens_[2] = {};
  uint64_t generation_ = 0;  // Of the folders that join; 0: they do not say.
};

TEST_F(EqualCopiesTest, IfTheFollowersLeaseEndsFirstItServesAllTheSameWhenItComesBackAlone) {
  LetBothExpire(1);
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3)) << "it was taken for alive when the other one's lease ended";
  Join(1, kWhole);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(Map().TermOf(0), Map().epoch());
  Join(0, kWhole);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
}

TEST_F(EqualCopiesTest, AFormerOwnerServesWhoseSuccessorHadEndedBeforeItKnewThatItWas) {
  LetBothExpire(0);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
  Join(0, kWhole);
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3));
}

TEST_F(EqualCopiesTest, ASuccessorThatKnewMayHaveAcknowledgedMoreAndIsWaitedFor) {
  LetExpire(0);
  AskRoute(1);
  time_.AdvanceMs(1);
  members_->TakeExpired();
  Join(0, kWhole);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Map().LostBy(1), IsEmpty());
}

TEST_F(EqualCopiesTest, OneThatAsksForTheMapAndDoesNotSayWhatItIsMayHaveBeenTheSuccessor) {
  LetExpire(0);
  EXPECT_TRUE(members_->Route(v1::RouteRequest()).ok());
  time_.AdvanceMs(1);
  members_->TakeExpired();
  Join(0, kWhole);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
}

TEST_F(EqualCopiesTest, AWorkerThatAsksForTheMapTellsItNoOwner) {
  LetExpire(0);
  v1::RouteRequest request;
  request.set_role(v1::ROLE_WORKER);
  EXPECT_TRUE(members_->Route(request).ok());
  time_.AdvanceMs(1);
  members_->TakeExpired();
  Join(0, kWhole);
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3));
}

TEST_F(EqualCopiesTest, AnOwnerThatWasToldThatItsFollowerDoesNotCountIsWaitedFor) {
  LetExpire(1);
  Report(0, false);  // Of the other shards it is not told.
  time_.AdvanceMs(kLeaseMs);
  members_->TakeExpired();
  Join(1, kWhole);
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0));
}

TEST_F(EqualCopiesTest, AnOwnerMayBeToldOfAnEarlierLifeOfItsFollower) {
  const Incarnation ended = lives_[1];
  LetExpire(1);
  Join(1, kWhole);
  v1::ReportSyncRequest request;
  request.set_incarnation(lives_[0]);
  request.add_reports()->set_follower(ended);  // Of shard 0: it acknowledges without that one from now on.
  const auto told = members_->ReportSync(request);
  ASSERT_TRUE(told.ok() && told->accepted(0)) << told.status();
  time_.AdvanceMs(kLeaseMs - 1);
  Beat(1);
  time_.AdvanceMs(1);
  members_->TakeExpired();
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0));
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(1, 2, 3)) << "it is there, and has all of these";
}

TEST_F(EqualCopiesTest, AFollowerThatLeavesWithItsOwnerCountsAsMuch) {
  for (const uint32_t server : {0, 1}) {
    v1::HeartbeatRequest request;
    request.set_incarnation(lives_[server]);
    request.set_leaving(true);
    EXPECT_TRUE(members_->Heartbeat(request).ok());
  }
  Join(0, kWhole);
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3));
}

TEST_F(EqualCopiesTest, AnotherCoordinatorKnowsItToo) {
  LetBothExpire(1);
  ASSERT_NO_FATAL_FAILURE(RestartCoordinator());
  Join(1, kWhole);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
}

TEST_F(EqualCopiesTest, AnotherCoordinatorKnowsWhatAnOwnerThatLivesWasNotTold) {
  LetExpire(0);
  ASSERT_NO_FATAL_FAILURE(RestartCoordinator());
  time_.AdvanceMs(kLeaseMs);
  members_->TakeExpired();
  Join(0, kWhole);
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3));
}

TEST_F(EqualCopiesTest, ThatAnOwnerIsToldIsAChangeThatIsSavedFirst) {
  LetExpire(0);
  const uint64_t before = members_->changes();
  AskRoute(1);
  EXPECT_GT(members_->changes(), before);
  ASSERT_NO_FATAL_FAILURE(RestartCoordinator());
  time_.AdvanceMs(kLeaseMs);
  members_->TakeExpired();
  Join(0, kWhole);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3)) << "it may have acknowledged more";
}

TEST_F(EqualCopiesTest, AnotherCoordinatorKnowsThatACopyIsAsleep) {
  LetBothExpire(1);
  Join(1, kAgain);
  ASSERT_TRUE(members_->shards().equal().IsAsleep(0));
  ASSERT_NO_FATAL_FAILURE(RestartCoordinator());
  EXPECT_TRUE(members_->shards().equal().IsAsleep(0));
  EXPECT_TRUE(members_->shards().IsUnserved(0));
  Join(1, kWhole);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
}

TEST_F(EqualCopiesTest, AnotherFolderAndOneThatAnotherLifeHadSinceProveNothing) {
  for (const Comes comes : {kAfterAnUnknownLife, kCutShort, kWithAnotherFolder}) {
    LetBothExpire(1);
    Join(1, comes);
    EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3)) << comes;
    // All is well again.
    Join(0, kWhole);
    for (const uint32_t server : {0, 1}) AskRoute(server);
    for (ShardId shard = 0; shard < kEqualShards; ++shard) Report(shard, true);
  }
}

TEST_F(EqualCopiesTest, ASuccessorThatLostTheEndOfItsLogWipesNoCopyThatHasIt) {
  LetBothExpire(0);
  Join(1, kCutShort);  // Its machine went down; server 0's process alone.
  EXPECT_THAT(Map().LostBy(1), ElementsAre(0, 1, 2, 3));
  ASSERT_THAT(Lines(), SizeIs(1));
  EXPECT_THAT(Lines()[0], HasSubstr("ps 0 has them whole"));
  EXPECT_THAT(Lines()[0], HasSubstr("`psctl accept-loss 1`"));
  ASSERT_NO_FATAL_FAILURE(RestartCoordinator());
  Beat(1);
  Join(1, kCutShort);
  EXPECT_THAT(Map().LostBy(1), ElementsAre(0, 1, 2, 3)) << "it was started again";
  Join(0, kWhole);
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Map().LostBy(0), IsEmpty());
  EXPECT_THAT(Lines(), IsEmpty());
}

// The start that failed had drawn a token, so that the next one was not believed, and the owner went on without the end
// of its log.
TEST_F(EqualCopiesTest, AStartThatNeverJoinedCostsAServerNoEqualCopy) {
  TellGenerations();
  LetBothExpire(0);
  Join(1, kCutShort);  // Its machine went down; server 0's process alone.
  ASSERT_THAT(Map().LostBy(1), ElementsAre(0, 1, 2, 3));
  Join(0, kAfterAFailedStart);
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Map().LostBy(0), IsEmpty());
}

TEST_F(EqualCopiesTest, AnOlderCopyOfAFolderProvesNothing) {
  TellGenerations();
  LetBothExpire(1);
  --generation_;
  Join(1, kWhole);  // It was copied when the life that ended had joined, and not begun yet.
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3));
}

// It was elsewhere while an older copy of it was in its place, and had what was acknowledged then.
TEST_F(EqualCopiesTest, AFolderInWhichMoreLivesHaveBegunThanAreKnownProvesNothing) {
  TellGenerations();
  LetBothExpire(0);
  Join(1, kCutShort);
  generation_ += 2;
  Join(0, kAfterAFailedStart);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
}

TEST_F(EqualCopiesTest, AHeartbeatTellsThatALifeHasBegunSince) {
  TellGenerations();
  v1::HeartbeatRequest begun;
  begun.set_incarnation(lives_[1]);
  begun.set_generation(generation_ + 1);
  ASSERT_TRUE(members_->Heartbeat(begun).ok());
  ASSERT_NO_FATAL_FAILURE(RestartCoordinator());
  for (const uint32_t server : {0, 1}) Beat(server);
  LetBothExpire(1);
  Join(1, kWhole);
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3)) << "it is a copy from before that";
}

TEST_F(EqualCopiesTest, OneThatIsThereTakesOverFromAnOwnerThatComesBackWithoutTheEndOfItsLog) {
  LetExpire(0);
  Join(0, kWhole);  // At once; that its successor is dead is not known yet.
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
  AskRoute(0);
  Join(1, kCutShort);
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3));
}

TEST_F(EqualCopiesTest, IfBothMachinesWentDownTheOwnerServesWhatItHasOnceTheOtherOneIsBack) {
  LetBothExpire(0);
  Join(1, kCutShort);
  EXPECT_THAT(Map().LostBy(1), ElementsAre(0, 1, 2, 3));
  Join(0, kCutShort);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Map().LostBy(1), IsEmpty());
}

TEST_F(EqualCopiesTest, AnOperatorMayHaveAnOwnerGoOnWithoutTheEndOfItsLog) {
  LetBothExpire(0);
  Join(1, kCutShort);
  v1::AcceptLossRequest request;
  request.set_server(1);
  ASSERT_TRUE(members_->AcceptLoss(request).ok());
  EXPECT_THAT(Map().LostBy(1), IsEmpty());
  time_.AdvanceMs(kLeaseMs);
  members_->TakeExpired();
  Join(0, kWhole);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3)) << "the other copy is equal no more";
}

TEST_F(EqualCopiesTest, AProcessThatHasLostItsLeaseAndJoinsAgainWaitsForItsOwner) {
  LetBothExpire(1);
  Join(1, kAgain);
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3));
  Join(0, kWhole);
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Lines(), IsEmpty());
}

// It has given up the copy that it had as an owner, and would have to be started again to serve it.
TEST_F(EqualCopiesTest, AFormerOwnerThatJoinedAgainDoesNotTakeOverWhenItsSuccessorEnds) {
  LetExpire(0);
  Join(0, kAgain);
  AskRoute(0);
  time_.AdvanceMs(1);
  members_->TakeExpired();
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
  Join(1, kWhole);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Lines(), IsEmpty());
}

// Seed 68 of the random test: the copy was forgotten when its server joined again.
TEST_F(EqualCopiesTest, AnOwnerWithoutTheEndOfItsLogDoesNotServeWhatAProcessThatJoinedAgainHolds) {
  LetExpire(1);
  Join(1, kAgain);
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3));
  Join(0, kCutShort);
  EXPECT_FALSE(Map().LostBy(0).empty());
  Join(1, kWhole);  // It is started again.
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Lines(), IsEmpty());
}

// Seed 90 of the random test.
TEST_F(EqualCopiesTest, AnOwnerThatEndedIsWaitedForIfTheEqualCopyThatTookItsPlaceLostTheEndOfItsLog) {
  LetExpire(1);
  Join(1, kWhole);
  Beat(1);
  time_.AdvanceMs(1);
  members_->TakeExpired();  // Server 0, which was never told that it may acknowledge alone.
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(0, 1, 2, 3));
  Join(1, kCutShort);
  EXPECT_THAT(Map().LostBy(1), ElementsAre(0, 1, 2, 3));
  Join(0, kWhole);
  EXPECT_THAT(Map().ShardsOf(0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Lines(), IsEmpty());
}

// A report that was sent before the shard went to the other one and came back says nothing of now.
TEST_F(EqualCopiesTest, AReportOfAFormerTermCountsForNothing) {
  v1::ReportSyncRequest request;
  request.set_incarnation(lives_[0]);
  request.add_reports()->set_shard(0);
  request.mutable_reports(0)->set_follower(lives_[1]);
  request.mutable_reports(0)->set_in_sync(true);
  for (const uint64_t term : {Map().TermOf(0) + 1, Map().TermOf(0)}) {
    request.mutable_reports(0)->set_term(term);
    const auto told = members_->ReportSync(request);
    ASSERT_TRUE(told.ok()) << told.status();
    EXPECT_EQ(told->accepted(0), term == Map().TermOf(0));
  }
}

// Regression: a ps that had begun while another one was the follower brought back nothing of the shard. It became the
// follower, and then the owner of what it did not hold (simulation's seed 4762); or its checkpoints left the shard out,
// and it became the owner when it was started again.
TEST(EqualCopiesOfThree, OneThatBeginsIsTheFollowerOfWhatItHasAnEqualCopyOf) {
  constexpr uint32_t kServers = 3;
  ManualTime time;
  Membership members(ReplicatedOptions(kServers, kServers, 2, kLeaseMs, /*ends_with_server_0=*/false, &time));
  Incarnation lives[kServers] = {};
  uint64_t tokens[kServers] = {};
  const auto join = [&](uint32_t server) {
    v1::JoinRequest request = ServerJoin(server, kServers);
    const bool first = tokens[server] == 0;
    request.set_predecessor(first ? 0 : 10 * (server + 1) + tokens[server]);
    request.set_token(10 * (server + 1) + ++tokens[server]);
    request.mutable_data()->set_folder(70 + server);
    request.mutable_data()->set_served(!first);
    if (!first) request.mutable_data()->set_whole(true);
    const auto joined = members.Join(request);
    ASSERT_TRUE(joined.ok()) << joined.status();
    lives[server] = joined->incarnation();
  };
  const auto ask = [&](uint32_t server) {
    v1::RouteRequest request;
    request.set_role(v1::ROLE_SERVER);
    request.set_incarnation(lives[server]);
    EXPECT_TRUE(members.Route(request).ok());
  };
  // Of one server the lease ends; those of `others` do not.
  const auto expire = [&](std::vector<uint32_t> others) {
    for (const int64_t ms : {kLeaseMs - 1, 1u}) {
      for (const uint32_t server : others) {
        v1::HeartbeatRequest request;
        request.set_incarnation(lives[server]);
        EXPECT_TRUE(members.Heartbeat(request).ok());
      }
      time.AdvanceMs(ms);
    }
    members.TakeExpired();
  };
  const auto owner = [&] { return members.SaveState().owners(0); };
  const auto follower = [&] { return members.SaveState().followers(0) - 1; };
  for (uint32_t server = 0; server < kServers; ++server) join(server);
  for (uint32_t server = 0; server < kServers; ++server) ask(server);
  const uint32_t owns = owner(), follows = follower(), third = kServers - owns - follows;
  v1::ReportSyncRequest report;
  report.set_incarnation(lives[owns]);
  report.add_reports()->set_follower(lives[follows]);
  report.mutable_reports(0)->set_in_sync(true);
  ASSERT_TRUE(members.ReportSync(report).ok());

  expire({owns, third});  // The follower ends, and its owner before it is told so.
  ASSERT_EQ(follower(), third);
  expire({third});
  join(owns);
  ASSERT_EQ(follower(), third);
  join(follows);
  ask(follows);
  EXPECT_EQ(follower(), follows) << "it would bring back nothing of the shard";
  expire({owns, follows});
  EXPECT_EQ(follower(), follows);
  expire({follows});  // The owner ends before it is told anything.
  EXPECT_EQ(owner(), follows);
}

}  // namespace
}  // namespace lodestone::server
