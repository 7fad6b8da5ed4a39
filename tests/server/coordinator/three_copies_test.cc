// Shards with two followers in Membership: who takes over, who counts, how they move, and what survives the
// coordinator.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
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

constexpr uint32_t kTripledShards = 8;

// Shard s is that of server s mod 4.
class ThreeCopiesTest : public ::testing::Test {
 protected:
  ThreeCopiesTest() { Begin({"", "", "", ""}); }

  void Begin(const std::vector<std::string>& zones) {
    zones_ = zones;
    lives_.assign(zones.size(), 0);
    members_ = std::make_unique<Membership>(Options(3));
    for (uint32_t server = 0; server < zones.size(); ++server) Join(server);
  }
  Membership::Options Options(uint32_t replicas) const {
    return ReplicatedOptions(static_cast<uint32_t>(zones_.size()), kTripledShards, replicas, kLeaseMs,
                             /*ends_with_server_0=*/false, &time_);
  }
  void Restart(uint32_t replicas = 3) {
    const v1::CoordinatorState state = members_->SaveState();
    members_ = std::make_unique<Membership>(Options(replicas));
    const absl::Status restored = members_->Restore(state);
    ASSERT_TRUE(restored.ok()) << restored;
  }
  void Join(uint32_t server) {
    v1::JoinRequest request = ServerJoin(server, kTripledShards);
    request.set_zone(zones_[server]);
    request.set_token(10 * (server + 1) + ++joins_);
    request.mutable_data()->set_folder(70 + server);
    request.mutable_data()->set_knows_learners(true);
    const auto joined = members_->Join(request);
    ASSERT_TRUE(joined.ok()) << joined.status();
    lives_[server] = joined->incarnation();
  }
  void Beat(uint32_t server) {
    v1::HeartbeatRequest request;
    request.set_incarnation(lives_[server]);
    ASSERT_TRUE(members_->Heartbeat(request).ok());
  }
  // The leases of `dead` end, at once.
  void LetExpire(const std::set<uint32_t>& dead) {
    for (int half = 0; half < 2; ++half) {
      for (uint32_t server = 0; server < lives_.size(); ++server) {
        if (!dead.contains(server) && Alive(server)) Beat(server);
      }
      time_.AdvanceMs(kLeaseMs / 2);
    }
    members_->TakeExpired();
  }
  // The owner says of a copy whether it is in sync, or that it gives the shard up to that; whether this was accepted.
  bool Report(ShardId shard, uint32_t server, bool in_sync, uint64_t gives_up = 0) {
    v1::ReportSyncRequest request;
    request.set_incarnation(lives_[Owner(shard)]);
    auto* const report = request.add_reports();
    report->set_shard(shard);
    report->set_follower(lives_[server]);
    report->set_in_sync(in_sync);
    report->set_gives_up(gives_up);
    report->set_term(shards().terms()[shard]);
    const auto told = members_->ReportSync(request);
    EXPECT_TRUE(told.ok()) << told.status();
    return told.ok() && told->accepted(0);
  }
  void Sync(ShardId shard) {
    for (const uint32_t server : Followers(shard)) {
      EXPECT_TRUE(!Alive(server) || Report(shard, server, true)) << "shard " << shard << " at ps " << server;
    }
  }
  void SyncAll() {
    for (ShardId shard = 0; shard < kTripledShards; ++shard) Sync(shard);
  }
  // Copies are made, and shards given up, until no move is left.
  void FinishMoves() {
    for (int round = 0; round < 40 && members_->Status().moves_size() > 0; ++round) {
      for (ShardId shard = 0; shard < kTripledShards; ++shard) {
        if (shards().IsUnserved(shard)) continue;
        const uint32_t learner = shards().learners()[shard];
        EXPECT_TRUE(learner == 0 || Report(shard, learner - 1, true));
        if (shards().handovers()[shard] > 0) {
          EXPECT_TRUE(Report(shard, shards().followers()[shard] - 1, true, shards().handovers()[shard]));
        }
        Sync(shard);
      }
    }
    EXPECT_THAT(members_->Status().moves(), IsEmpty());
  }
  bool Alive(uint32_t server) const { return members_->members().CheckAlive(lives_[server]).ok(); }
  const ShardAssignment& shards() const { return members_->shards(); }
  uint32_t Owner(ShardId shard) const { return shards().owners()[shard]; }
  std::vector<uint32_t> Followers(ShardId shard) const { return shards().copies().Of(shard); }
  uint32_t HeldBy(uint32_t server) const {
    uint32_t held = 0;
    for (ShardId shard = 0; shard < kTripledShards; ++shard) {
      held += Owner(shard) == server || shards().copies().Follows(server, shard);
    }
    return held;
  }
  // Whether the copies of a shard that live are in as many zones.
  bool AreApart(ShardId shard) const {
    std::vector<uint32_t> holders = Followers(shard);
    holders.push_back(Owner(shard));
    std::erase_if(holders, [this](uint32_t server) { return !Alive(server); });
    std::set<std::string> zones;
    for (const uint32_t server : holders) zones.insert(zones_[server]);
    return zones.size() == holders.size();
  }
  absl::StatusOr<v1::DrainResponse> Drain(uint32_t server) {
    v1::DrainRequest request;
    request.set_server(server);
    return members_->Drain(request);
  }
  absl::StatusOr<v1::MoveResponse> Move(ShardId shard, uint32_t server) {
    v1::MoveRequest request;
    request.add_shards(shard);
    request.set_server(server);
    return members_->Move(request);
  }

  ManualTime time_;
  std::vector<std::string> zones_;
  uint64_t joins_ = 0;
  std::vector<Incarnation> lives_;
  std::unique_ptr<Membership> members_;
};

TEST_F(ThreeCopiesTest, EachShardIsAtThreeServersAndEachServerHoldsAsMuch) {
  for (ShardId shard = 0; shard < kTripledShards; ++shard) {
    const std::vector<uint32_t> followers = Followers(shard);
    ASSERT_EQ(followers.size(), 2);
    EXPECT_NE(followers[0], followers[1]);
    EXPECT_THAT(followers, ::testing::Not(::testing::Contains(Owner(shard))));
  }
  for (uint32_t server = 0; server < 4; ++server) EXPECT_EQ(HeldBy(server), 3 * kTripledShards / 4) << "ps " << server;
  EXPECT_EQ(members_->Status().shards_in_sync(), 0);
  EXPECT_FALSE(shards().IsComplete());
  for (ShardId shard = 0; shard < kTripledShards; ++shard) ASSERT_TRUE(Report(shard, Followers(shard)[0], true));
  EXPECT_EQ(members_->Status().shards_in_sync(), 0) << "two copies are not three";
  SyncAll();
  EXPECT_EQ(members_->Status().shards_in_sync(), kTripledShards);
  EXPECT_TRUE(shards().IsComplete());
  const auto route = shards().Route();
  ASSERT_TRUE(route.ok()) << route.status();
  const auto map = ShardMap::FromProto(*route);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->FollowersOf(0), Followers(0));
  EXPECT_TRUE(map->InSync(0, Followers(0)[1]));
}

TEST_F(ThreeCopiesTest, TheOneOfTheTwoThatIsInSyncTakesOver) {
  const uint32_t first = Followers(0)[0], second = Followers(0)[1];
  ASSERT_TRUE(Report(0, second, true));
  EXPECT_FALSE(Report(0, 0, true)) << "that one owns it";
  LetExpire({0});
  EXPECT_EQ(Owner(0), second);
  EXPECT_EQ(Followers(0).front(), first) << "it has most of what there is";
  EXPECT_FALSE(shards().in_sync()[0]);
}

TEST_F(ThreeCopiesTest, WhenOwnerAndAFollowerEndTogetherTheOtherFollowerTakesOver) {
  SyncAll();
  const uint32_t first = Followers(0)[0], second = Followers(0)[1];
  LetExpire({0, first});
  EXPECT_EQ(Owner(0), second);
  EXPECT_EQ(shards().unserved(), 0) << "each shard of theirs has a copy that lives";
  for (ShardId shard = 0; shard < kTripledShards; ++shard) {
    EXPECT_TRUE(Alive(Owner(shard)));
    EXPECT_FALSE(shards().copies().AreInSync(shard) && Followers(shard).size() > 1);
  }
}

TEST_F(ThreeCopiesTest, AFollowerThatLeavesLeavesTheOtherOneFirst) {
  SyncAll();
  const uint32_t first = Followers(0)[0], second = Followers(0)[1];
  ASSERT_TRUE(Report(0, first, false));
  EXPECT_THAT(Followers(0), ElementsAre(second, first));
  EXPECT_TRUE(shards().in_sync()[0]);
  EXPECT_FALSE(shards().copies().AreInSync(0));
  ASSERT_TRUE(Report(0, second, false));
  EXPECT_FALSE(shards().in_sync()[0]);
  LetExpire({0});
  EXPECT_EQ(Owner(0), 0) << "nobody else has what it acknowledged since";
}

TEST_F(ThreeCopiesTest, ALateWordAboutAFollowerThatIsNoneAnyMoreChangesNothing) {
  SyncAll();
  const uint32_t first = Followers(0)[0];
  const Incarnation former = lives_[first];
  Join(first);  // Another life.
  EXPECT_FALSE(shards().copies().IsInSync(first, 0));
  EXPECT_TRUE(shards().in_sync()[0]) << "the other one";
  const Incarnation now = std::exchange(lives_[first], former);
  EXPECT_FALSE(Report(0, first, true));
  EXPECT_TRUE(Report(0, first, false));
  EXPECT_TRUE(shards().in_sync()[0]);
  lives_[first] = now;
  EXPECT_TRUE(Report(0, first, true));
  EXPECT_TRUE(shards().copies().AreInSync(0));
}

TEST_F(ThreeCopiesTest, ADeadFollowersPlaceIsTakenByTheFourthServer) {
  SyncAll();
  const uint32_t first = Followers(0)[0], second = Followers(0)[1], fourth = 6 - first - second;
  LetExpire({second});
  EXPECT_THAT(Followers(0), ElementsAre(first, fourth));
  SyncAll();
  EXPECT_TRUE(shards().IsComplete());
}

TEST_F(ThreeCopiesTest, AShardMovesToItsSecondFollowerWithoutACopy) {
  SyncAll();
  const uint32_t first = Followers(0)[0], second = Followers(0)[1];
  ASSERT_TRUE(Move(0, second).ok());
  EXPECT_EQ(shards().learners()[0], 0);
  ASSERT_GT(shards().handovers()[0], 0);
  EXPECT_FALSE(Report(0, first, true, shards().handovers()[0])) << "that one is not to own it";
  ASSERT_TRUE(Report(0, second, true, shards().handovers()[0]));
  EXPECT_EQ(Owner(0), second);
  EXPECT_THAT(Followers(0), ElementsAre(first, 0));
  Sync(0);
  EXPECT_TRUE(shards().copies().IsComplete(0));
}

TEST_F(ThreeCopiesTest, AShardMovesToAServerThatLearnsItInTheFirstFollowersPlace) {
  SyncAll();
  const uint32_t first = Followers(0)[0], second = Followers(0)[1], fourth = 6 - first - second;
  ASSERT_TRUE(Move(0, fourth).ok());
  ASSERT_EQ(shards().learners()[0], fourth + 1);
  ASSERT_TRUE(Report(0, fourth, true));
  EXPECT_TRUE(shards().copies().AreInSync(0)) << "at no time there are fewer than three";
  EXPECT_THAT(std::set<uint32_t>({Followers(0)[0], Followers(0)[1]}),
              ElementsAre(std::min(second, fourth), std::max(second, fourth)));
  FinishMoves();
  EXPECT_EQ(Owner(0), fourth);
  EXPECT_THAT(Followers(0), ElementsAre(second, 0));
}

TEST_F(ThreeCopiesTest, WhenTheFirstFollowerEndsAMoveToItEndsAndTheOwnerKeepsTheShard) {
  SyncAll();
  const uint32_t first = Followers(0)[0], second = Followers(0)[1];
  ASSERT_TRUE(Move(0, first).ok());
  ASSERT_GT(shards().handovers()[0], 0);
  LetExpire({first});
  EXPECT_EQ(shards().handovers()[0], 0);
  EXPECT_EQ(Owner(0), 0);
  EXPECT_EQ(Followers(0)[0], second);
  EXPECT_TRUE(shards().in_sync()[0]);
}

TEST_F(ThreeCopiesTest, ADrainedServerHoldsNothingAndThreeOthersAreNeededForThat) {
  SyncAll();
  ASSERT_TRUE(Drain(1).ok());
  FinishMoves();
  EXPECT_EQ(HeldBy(1), 0);
  EXPECT_TRUE(shards().IsComplete());
  EXPECT_THAT(Drain(2).status().message(), HasSubstr("cluster.replicas: 3 as many other ps"));
}

TEST_F(ThreeCopiesTest, AnotherLifeOfTheCoordinatorKnowsBothFollowers) {
  SyncAll();
  const std::vector<uint32_t> followers = Followers(0);
  Restart();
  EXPECT_EQ(Followers(0), followers);
  EXPECT_TRUE(shards().copies().AreInSync(0));
  // The owner is gone, and of its followers the second is heard of first.
  Beat(followers[1]);
  Join(0);
  EXPECT_EQ(Owner(0), followers[1]);
  EXPECT_FALSE(shards().undecided()[0]);
}

TEST_F(ThreeCopiesTest, WhereNeitherFollowerWasHeardOfTheFirstOneHeardOfOwns) {
  SyncAll();
  const std::vector<uint32_t> followers = Followers(0);
  Restart();
  Join(0);
  EXPECT_TRUE(shards().undecided()[0]);
  EXPECT_FALSE(shards().Route().ok());
  Beat(followers[1]);
  EXPECT_FALSE(shards().undecided()[0]);
  EXPECT_EQ(Owner(0), followers[1]);
}

TEST_F(ThreeCopiesTest, WhereTheSilentFollowersLeaseEndsTheOtherOneIsStillWaitedFor) {
  SyncAll();
  const std::vector<uint32_t> followers = Followers(0);
  Restart();
  Join(0);
  ASSERT_TRUE(shards().undecided()[0]);
  Join(followers[0]);  // Another life, that may lack what the one before had.
  EXPECT_TRUE(shards().undecided()[0]);
  EXPECT_EQ(Owner(0), 0);
  Beat(followers[1]);
  EXPECT_EQ(Owner(0), followers[1]);
}

TEST_F(ThreeCopiesTest, WithOneCopyLessTheFollowerInSyncStays) {
  SyncAll();
  const uint32_t first = Followers(0)[0], second = Followers(0)[1];
  ASSERT_TRUE(Report(0, first, false));
  Restart(/*replicas=*/2);
  EXPECT_THAT(Followers(0), ElementsAre(second));
  EXPECT_TRUE(shards().in_sync()[0]);
  EXPECT_TRUE(shards().copies().IsComplete(0));
  EXPECT_TRUE(members_->SaveState().second_followers().empty());
}

TEST_F(ThreeCopiesTest, WithOneCopyMoreEachShardGetsASecondFollower) {
  SyncAll();
  Restart(/*replicas=*/2);
  Restart(/*replicas=*/3);
  for (uint32_t server = 0; server < 4; ++server) Join(server);
  for (ShardId shard = 0; shard < kTripledShards; ++shard) EXPECT_EQ(Followers(shard).size(), 2) << "shard " << shard;
  SyncAll();
  EXPECT_TRUE(shards().IsComplete());
}

TEST_F(ThreeCopiesTest, WithoutReplicasAndWithThemAgainEachShardGetsItsFollowersBack) {
  SyncAll();
  Restart(/*replicas=*/1);
  EXPECT_THAT(Followers(0), IsEmpty());
  EXPECT_TRUE(members_->SaveState().followers().empty());
  Restart(/*replicas=*/3);
  for (uint32_t server = 0; server < 4; ++server) Join(server);
  for (ShardId shard = 0; shard < kTripledShards; ++shard) {
    EXPECT_EQ(Followers(shard).size(), 2) << "shard " << shard;
    EXPECT_FALSE(shards().in_sync()[shard]) << "what they have is from before";
  }
  SyncAll();
  EXPECT_TRUE(shards().IsComplete());
}

TEST_F(ThreeCopiesTest, AnOperatorMayPromoteTheSecondFollowerOfAShardThatNobodyServes) {
  const uint32_t first = Followers(0)[0], second = Followers(0)[1];
  LetExpire({0});
  ASSERT_TRUE(shards().IsUnserved(0));
  v1::HeartbeatRequest beat;
  beat.set_incarnation(lives_[second]);
  auto* const copy = beat.add_copies();
  copy->set_shard(0);
  copy->set_version(7);
  ASSERT_TRUE(members_->Heartbeat(beat).ok());
  v1::PromoteRequest promote;
  promote.set_server(second);
  ASSERT_TRUE(members_->Promote(promote).ok());
  EXPECT_EQ(Owner(0), second);
  EXPECT_FALSE(shards().IsUnserved(0));
  EXPECT_EQ(Followers(0).front(), first);
}

TEST_F(ThreeCopiesTest, AFollowerThatComesBackFollowsAgainBesideTheOneThatIsInSync) {
  SyncAll();
  const uint32_t first = Followers(0)[0], second = Followers(0)[1];
  Join(first);
  EXPECT_TRUE(shards().in_sync()[0]);
  EXPECT_THAT(Followers(0), ElementsAre(second, first));
  EXPECT_FALSE(shards().copies().IsInSync(first, 0));
}

// The other follower is silent, as the coordinator was started again, when the new owner ends that was told nothing.
TEST_F(ThreeCopiesTest, ASilentFollowerWithAnEqualCopyOwnsWhenItIsHeardOf) {
  SyncAll();
  const uint32_t first = Followers(0)[0], second = Followers(0)[1];
  Restart();
  Beat(first);
  Join(0);
  ASSERT_EQ(Owner(0), first);
  v1::HeartbeatRequest leaves;
  leaves.set_incarnation(lives_[first]);
  leaves.set_leaving(true);
  ASSERT_TRUE(members_->Heartbeat(leaves).ok());
  EXPECT_TRUE(shards().IsUnserved(0)) << "whether the other follower lives is not known";
  Beat(second);
  EXPECT_EQ(Owner(0), second);
  EXPECT_FALSE(shards().IsUnserved(0));
}

TEST_F(ThreeCopiesTest, AStateWhoseSecondFollowersCannotBeIsRefused) {
  SyncAll();
  using State = v1::CoordinatorState;
  const State state = members_->SaveState();
  const uint32_t first = state.followers(0);
  for (const auto& spoil : std::vector<std::function<void(State*)>>{
           [](State* saved) { saved->mutable_second_followers()->RemoveLast(); },
           [](State* saved) { saved->add_second_in_sync(true); },
           [](State* saved) { saved->set_second_followers(0, 1); },  // The owner.
           [&](State* saved) { saved->set_second_followers(0, first); },
           [](State* saved) { saved->set_second_followers(0, 5); },
           [](State* saved) { saved->set_second_followers(0, 0); },  // In sync, and nobody.
           [](State* saved) { saved->set_in_sync(0, false); },       // Then the second one is the first.
       }) {
    State spoilt = state;
    spoil(&spoilt);
    EXPECT_EQ(Membership(Options(3)).Restore(spoilt).code(), absl::StatusCode::kDataLoss) << spoilt.DebugString();
  }
  EXPECT_TRUE(Membership(Options(3)).Restore(state).ok());
}

TEST_F(ThreeCopiesTest, AfterAFailoverToAServerThatIsDeadTooTheOtherFollowerOwns) {
  SyncAll();
  const uint32_t first = Followers(0)[0], second = Followers(0)[1];
  // The first follower is dead, and its lease holds for a while.
  time_.AdvanceMs(kLeaseMs / 2);
  for (const uint32_t server : {first, second, 6 - first - second}) Beat(server);
  time_.AdvanceMs(kLeaseMs / 2);
  members_->TakeExpired();
  ASSERT_EQ(Owner(0), first);
  EXPECT_EQ(shards().equal().HolderOf(0), second + 1);
  Beat(second);
  time_.AdvanceMs(kLeaseMs / 2);
  members_->TakeExpired();
  EXPECT_EQ(Owner(0), second) << "the one before was never told that it owns the shard";
  EXPECT_FALSE(shards().IsUnserved(0));
}

TEST_F(ThreeCopiesTest, AnOwnerThatWasToldMayHaveAcknowledgedWhatTheOtherFollowerLacks) {
  SyncAll();
  const uint32_t first = Followers(0)[0], second = Followers(0)[1];
  LetExpire({0});
  ASSERT_EQ(Owner(0), first);
  v1::RouteRequest asks;
  asks.set_role(v1::ROLE_SERVER);
  asks.set_incarnation(lives_[first]);
  ASSERT_TRUE(members_->Route(asks).ok());
  EXPECT_EQ(shards().equal().HolderOf(0), 0);
  LetExpire({first});
  EXPECT_EQ(Owner(0), first);
  EXPECT_TRUE(shards().IsUnserved(0));
  EXPECT_TRUE(Alive(second));
}

TEST_F(ThreeCopiesTest, CopiesAreInThreeZonesWhereThereAreAsMany) {
  Begin({"a", "a", "b", "c"});
  for (ShardId shard = 0; shard < kTripledShards; ++shard) EXPECT_TRUE(AreApart(shard)) << "shard " << shard;
  SyncAll();
  LetExpire({3});
  for (ShardId shard = 0; shard < kTripledShards; ++shard) Sync(shard);
  EXPECT_THAT(members_->Status().one_zone(), IsEmpty()) << "two zones have copies";
  Join(3);
  SyncAll();
  FinishMoves();
  for (ShardId shard = 0; shard < kTripledShards; ++shard) EXPECT_TRUE(AreApart(shard)) << "shard " << shard;
}

TEST_F(ThreeCopiesTest, InTwoZonesNoneHasAllCopiesOfAShard) {
  Begin({"a", "a", "b", "b"});
  SyncAll();
  FinishMoves();
  for (ShardId shard = 0; shard < kTripledShards; ++shard) {
    std::set<std::string> zones = {zones_[Owner(shard)]};
    for (const uint32_t server : Followers(shard)) zones.insert(zones_[server]);
    EXPECT_EQ(zones.size(), 2) << "shard " << shard;
  }
  EXPECT_THAT(members_->Status().one_zone(), IsEmpty());
  EXPECT_THAT(members_->Status().moves(), IsEmpty());
}

}  // namespace
}  // namespace lodestone::server
