// Followers in Membership: who follows, who is in sync, and who takes over.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/wire/shard_map.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"
#include "tests/server/coordinator/replicated_members.h"

namespace lodestone::server {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr uint32_t kReplicatedShards = 12;

// Servers 0, 1 and 2 own shard s if s mod 3 is theirs; shards 0, 1, 2, 6, 7, 8 are followed by the next server, the
// others by the one after it.
class ReplicasTest : public ::testing::Test {
 protected:
  ReplicasTest() { Begin(3, 2); }

  Membership::Options OptionsWith(uint32_t servers, uint32_t replicas) const {
    return ReplicatedOptions(servers, kReplicatedShards, replicas, kLeaseMs, /*ends_with_server_0=*/true, &time_);
  }
  // A fresh cluster in which all have joined.
  void Begin(uint32_t servers, uint32_t replicas) {
    members_ = std::make_unique<Membership>(OptionsWith(servers, replicas));
    lives_.assign(servers, 0);
    for (uint32_t server = 0; server < servers; ++server) Join(server);
  }
  // Another life of the coordinator.
  void Restart(const v1::CoordinatorState& state, uint32_t replicas = 2) {
    members_ = std::make_unique<Membership>(OptionsWith(lives_.size(), replicas));
    const absl::Status restored = members_->Restore(state);
    ASSERT_TRUE(restored.ok()) << restored;
  }
  void Restart() { Restart(members_->SaveState()); }

  // Another life of a server, at its address.
  void Join(uint32_t server) {
    v1::JoinRequest request = ServerJoin(server, kReplicatedShards);
    const auto joined = members_->Join(request);
    ASSERT_TRUE(joined.ok()) << joined.status();
    lives_[server] = joined->incarnation();
  }
  absl::Status Beat(uint32_t server, bool leaving = false) {
    v1::HeartbeatRequest request;
    request.set_incarnation(lives_[server]);
    request.set_leaving(leaving);
    return members_->Heartbeat(request).status();
  }
  // How many shards a server is told wait for a copy.
  uint32_t ToSync(uint32_t server) {
    v1::HeartbeatRequest request;
    request.set_incarnation(lives_[server]);
    const auto answer = members_->Heartbeat(request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? answer->shards_to_sync() : 0;
  }
  // Lets the leases of `servers` end, and nobody else's.
  void LetExpire(const std::vector<uint32_t>& servers) {
    time_.AdvanceMs(kLeaseMs - 1);
    for (uint32_t server = 0; server < lives_.size(); ++server) {
      if (std::find(servers.begin(), servers.end(), server) == servers.end()) (void)Beat(server);
    }
    time_.AdvanceMs(1);
    members_->TakeExpired();
  }

  absl::StatusOr<bool> Report(uint32_t owner, ShardId shard, Incarnation follower, bool in_sync,
                              uint64_t sequence = 0) {
    v1::ReportSyncRequest request;
    request.set_incarnation(lives_[owner]);
    request.set_sequence(sequence);
    request.add_reports()->set_shard(shard);
    request.mutable_reports(0)->set_follower(follower);
    request.mutable_reports(0)->set_in_sync(in_sync);
    const auto told = members_->ReportSync(request);
    if (!told.ok()) return told.status();
    return told->accepted(0);
  }
  // The follower of each of `shards` is in sync from now on.
  void Sync(const std::vector<ShardId>& shards) {
    for (const ShardId shard : shards) {
      const v1::CoordinatorState state = members_->SaveState();
      const auto accepted = Report(state.owners(shard), shard, lives_[state.followers(shard) - 1], true);
      ASSERT_TRUE(accepted.ok()) << accepted.status();
      ASSERT_TRUE(*accepted) << shard;
    }
  }
  void SyncAll() { Sync({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}); }

  ShardMap Map() const {
    const auto route = members_->shards().Route();
    EXPECT_TRUE(route.ok()) << route.status();
    return *ShardMap::FromProto(*route);
  }
  std::vector<uint32_t> Owners() const {
    const v1::CoordinatorState state = members_->SaveState();
    return {state.owners().begin(), state.owners().end()};
  }
  std::vector<ShardId> InSync() const {
    std::vector<ShardId> shards;
    const v1::CoordinatorState state = members_->SaveState();
    for (int shard = 0; shard < state.in_sync_size(); ++shard) {
      if (state.in_sync(shard)) shards.push_back(shard);
    }
    return shards;
  }
  std::string RouteError() const { return std::string(members_->shards().Route().status().message()); }

  ManualTime time_;
  std::unique_ptr<Membership> members_;
  std::vector<Incarnation> lives_;
};

TEST_F(ReplicasTest, AtFirstFollowersAreSpreadAndNobodyIsInSync) {
  const auto route = members_->shards().Route();
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(std::vector<uint32_t>(route->followers().begin(), route->followers().end()),
            InitialFollowers(kReplicatedShards, 3));
  EXPECT_THAT(route->followers(), ElementsAre(2, 3, 1, 3, 1, 2, 2, 3, 1, 3, 1, 2));
  EXPECT_EQ(route->in_sync_size(), static_cast<int>(kReplicatedShards));
  EXPECT_THAT(route->in_sync(), Each(false));
  EXPECT_THAT(route->terms(), Each(0));
  EXPECT_THAT(members_->TakeFailovers(), IsEmpty());
}

TEST_F(ReplicasTest, WithOneReplicaNothingIsSaidOfFollowersAndShardsStay) {
  Begin(2, 1);
  LetExpire({1});
  const auto route = members_->shards().Route();
  ASSERT_TRUE(route.ok());
  EXPECT_EQ(route->followers_size() + route->in_sync_size() + route->terms_size(), 0);
  EXPECT_EQ(Owners(), InitialOwners(kReplicatedShards, 2));
  EXPECT_FALSE(*Report(0, 0, lives_[1], true));
  EXPECT_TRUE(*Report(0, 0, 0, false));
  EXPECT_THAT(members_->TakeFailovers(), IsEmpty());
}

TEST_F(ReplicasTest, AReportMustBeSavedAndRaisesNoEpoch) {
  const uint64_t epoch = members_->shards().epoch(), changes = members_->changes(),
                 route_changes = members_->shards().changes();
  Sync({0});
  EXPECT_TRUE(Map().InSync(0));
  EXPECT_FALSE(Map().InSync(3));
  EXPECT_EQ(members_->shards().epoch(), epoch);
  EXPECT_EQ(members_->changes(), changes + 1);
  EXPECT_EQ(members_->shards().changes(), route_changes + 1);
  Sync({0});
  EXPECT_EQ(members_->changes(), changes + 1) << "it is known";
  EXPECT_TRUE(*Report(0, 0, lives_[1], false));
  EXPECT_FALSE(Map().InSync(0));
  EXPECT_EQ(members_->changes(), changes + 2);
  EXPECT_EQ(members_->shards().epoch(), epoch);
}

TEST_F(ReplicasTest, OnlyTheOwnersWordCountsAndOnlyOfTheFollowersPresentLife) {
  EXPECT_FALSE(*Report(1, 0, lives_[1], true)) << "the follower itself";
  EXPECT_FALSE(*Report(2, 0, lives_[1], true));
  EXPECT_FALSE(*Report(0, 0, lives_[2], true)) << "it follows other shards";
  EXPECT_FALSE(*Report(0, 0, 0, true)) << "nobody is meant";
  const Incarnation former = lives_[1];
  Join(1);
  EXPECT_FALSE(*Report(0, 0, former, true));
  EXPECT_TRUE(*Report(0, 0, lives_[1], true));
  EXPECT_FALSE(*Report(2, 0, 0, false)) << "not the owner";
  EXPECT_THAT(InSync(), ElementsAre(0));
}

TEST_F(ReplicasTest, AnOwnerIsReleasedFromTheFollowerThatItNamesOrFromAnyThatItHas) {
  const Incarnation former = lives_[1];
  Sync({0});
  Join(1);
  Sync({0});
  EXPECT_TRUE(*Report(0, 0, former, false)) << "who is not the follower is not in sync";
  EXPECT_THAT(InSync(), ElementsAre(0));
  EXPECT_TRUE(*Report(0, 0, 0, false));
  EXPECT_THAT(InSync(), IsEmpty());
}

TEST_F(ReplicasTest, AReportThatWasOvertakenCountsForNothing) {
  EXPECT_TRUE(*Report(0, 0, lives_[1], true, 5));
  EXPECT_TRUE(*Report(0, 0, lives_[1], true, 5)) << "it was sent once and came twice";
  EXPECT_TRUE(*Report(0, 0, 0, false, 7));
  EXPECT_EQ(Report(0, 0, lives_[1], true, 6).status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(InSync(), IsEmpty());
  Join(0);
  EXPECT_TRUE(Report(0, 0, lives_[1], true, 1).ok()) << "another life counts anew";
}

TEST_F(ReplicasTest, ReportsThatCannotBeAreRefused) {
  EXPECT_EQ(Report(0, kReplicatedShards, lives_[1], true).status().code(), absl::StatusCode::kInvalidArgument);
  const Incarnation former = lives_[0];
  Join(0);
  lives_[0] = former;
  EXPECT_EQ(Report(0, 0, lives_[1], true).status().code(), absl::StatusCode::kFailedPrecondition);
  v1::JoinRequest worker;
  worker.set_role(v1::ROLE_WORKER);
  worker.set_cluster("test");
  lives_[0] = members_->Join(worker)->incarnation();
  EXPECT_EQ(Report(0, 0, lives_[1], true).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ReplicasTest, AReportKeepsTheLease) {
  time_.AdvanceMs(kLeaseMs - 1);
  EXPECT_TRUE(Report(0, 0, 0, false).ok());
  time_.AdvanceMs(kLeaseMs - 1);
  EXPECT_TRUE(Beat(0).ok());
  EXPECT_FALSE(Beat(1).ok());
}

TEST_F(ReplicasTest, TheEndOfALeaseGivesTheShardsToThoseInSyncAndLeavesTheOthers) {
  Sync({1, 4, 0, 2});  // Of server 1's, shards 1 (followed by 2) and 4 (by 0).
  const uint64_t epoch = members_->shards().epoch();
  LetExpire({1});
  EXPECT_GT(members_->shards().epoch(), epoch);
  const ShardMap map = Map();
  EXPECT_EQ(map.OwnerOf(1), 2);
  EXPECT_EQ(map.OwnerOf(4), 0);
  EXPECT_EQ(map.OwnerOf(7), 1) << "nobody else has it";
  EXPECT_EQ(map.OwnerOf(10), 1);
  for (const ShardId shard : {1, 4}) {
    EXPECT_EQ(map.TermOf(shard), epoch + 1);
    EXPECT_FALSE(map.InSync(shard)) << "its new owner acknowledges alone";
  }
  EXPECT_EQ(map.TermOf(7), 0);
  EXPECT_FALSE(map.InSync(0)) << "server 1 followed it";
  EXPECT_TRUE(map.InSync(2)) << "server 1 has nothing to do with it";
  EXPECT_THAT(
      members_->TakeFailovers(),
      ElementsAre("ps 1 (host:2) is out; its shards: 1 to ps 0, 1 to ps 2, 2 without an owner, waiting for it"));
  EXPECT_THAT(members_->TakeFailovers(), IsEmpty());
  EXPECT_TRUE(map.Away(1));
}

// By this it is ready, and a rolling update ends the next ps.
TEST_F(ReplicasTest, WhoComesBackIsToldOfTheCopiesThatTheOthersStillMakeOfOneAnothersShards) {
  SyncAll();
  ASSERT_TRUE(Beat(2, /*leaving=*/true).ok());
  Join(2);
  const v1::CoordinatorState state = members_->SaveState();
  EXPECT_THAT(state.owners(), ::testing::Not(::testing::Contains(2)));
  EXPECT_THAT(state.followers(), ::testing::Not(::testing::Contains(2 + 1)));
  const size_t waiting = kReplicatedShards - InSync().size();
  ASSERT_GT(waiting, 0);
  EXPECT_EQ(ToSync(2), waiting);
  EXPECT_EQ(ToSync(0), waiting);
  SyncAll();
  EXPECT_EQ(ToSync(2), 0);
}

TEST_F(ReplicasTest, WhoLeavesGivesItsShardsAway) {
  SyncAll();
  EXPECT_TRUE(Beat(1, true).ok());
  const ShardMap map = Map();
  EXPECT_THAT(map.ShardsOf(1), IsEmpty());
  EXPECT_EQ(map.OwnerOf(1), 2);
  EXPECT_EQ(map.OwnerOf(4), 0);
  EXPECT_THAT(map.FollowedBy(1), IsEmpty());
  EXPECT_THAT(members_->TakeFailovers(), SizeIs(1));
}

TEST_F(ReplicasTest, WhoComesBackBeforeItsLeaseEndsHasLostItsShardsAndFollowsThem) {
  SyncAll();
  const Incarnation former = lives_[1];
  Join(1);
  const ShardMap map = Map();
  EXPECT_THAT(map.ShardsOf(1), IsEmpty()) << "its new life may have lost everything";
  for (const ShardId shard : {1, 4, 7, 10}) {
    EXPECT_EQ(map.FollowerOf(shard), 1);
    EXPECT_FALSE(map.InSync(shard));
  }
  EXPECT_THAT(map.FollowedBy(1), SizeIs(8)) << "and what it followed before";
  EXPECT_FALSE(map.InSync(0)) << "but it has to catch up";
  EXPECT_FALSE(*Report(1, 1, lives_[2], true));
  lives_[1] = former;
  EXPECT_EQ(Report(1, 1, lives_[2], false).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ReplicasTest, WhoComesBackKeepsWhatNobodyElseHas) {
  Join(1);
  EXPECT_THAT(Map().ShardsOf(1), ElementsAre(1, 4, 7, 10));
  EXPECT_THAT(Map().FollowedBy(1), ElementsAre(0, 5, 6, 11));
}

TEST_F(ReplicasTest, AFollowerThatEndsIsReplacedByTheOneWithTheFewestShards) {
  SyncAll();
  LetExpire({1});
  const ShardMap map = Map();
  for (ShardId shard = 0; shard < kReplicatedShards; ++shard) {
    EXPECT_NE(map.FollowerOf(shard), 1) << shard;
    EXPECT_NE(map.OwnerOf(shard), 1) << shard;
    EXPECT_NE(map.FollowerOf(shard), map.OwnerOf(shard)) << shard;
  }
  EXPECT_THAT(InSync(), ElementsAre(2, 3, 8, 9)) << "between servers 0 and 2";
  Begin(4, 2);
  Sync({1, 5});  // Of server 1; followed by 2 and 3.
  LetExpire({1});
  const ShardMap four = Map();
  std::vector<size_t> held;
  for (const uint32_t server : {0, 2, 3}) {
    held.push_back(four.ShardsOf(server).size() + four.FollowedBy(server).size());
  }
  // Owner 1 keeps shard 9; all else is shared by three.
  EXPECT_EQ(held[0] + held[1] + held[2], 2 * kReplicatedShards - 1);
  EXPECT_LE(*std::max_element(held.begin(), held.end()) - *std::min_element(held.begin(), held.end()), 1);
}

TEST_F(ReplicasTest, OfTwoServersTheDeadOneKeepsItsPlaceAsFollower) {
  Begin(2, 2);
  SyncAll();
  LetExpire({1});
  EXPECT_THAT(Map().ShardsOf(0), SizeIs(kReplicatedShards));
  EXPECT_THAT(Map().FollowedBy(1), SizeIs(kReplicatedShards));
  EXPECT_THAT(InSync(), IsEmpty());
  EXPECT_FALSE(*Report(0, 1, lives_[1], true)) << "it is dead";
  Join(1);
  SyncAll();
  LetExpire({0});
  EXPECT_THAT(Map().ShardsOf(1), SizeIs(kReplicatedShards)) << "and back again";
  EXPECT_EQ(Map().TermOf(3), members_->shards().epoch());
}

TEST_F(ReplicasTest, IfBothEndAtOnceTheOwnerKeepsTheShard) {
  SyncAll();
  LetExpire({0, 1, 2});
  EXPECT_EQ(Owners(), InitialOwners(kReplicatedShards, 3));
  EXPECT_THAT(InSync(), IsEmpty());
  Join(2);
  EXPECT_EQ(Owners(), InitialOwners(kReplicatedShards, 3));
}

TEST_F(ReplicasTest, APsWhoseProcessIsGoneIsOutBeforeItsLeaseEnds) {
  SyncAll();
  time_.AdvanceMs(300);
  EXPECT_TRUE(members_->NoteGone(lives_[1], 200));
  EXPECT_THAT(members_->TakeExpired(), ElementsAre(HasSubstr("nobody listens at host:2")));
  const ShardMap map = Map();
  EXPECT_TRUE(map.Away(1));
  EXPECT_THAT(map.ShardsOf(1), IsEmpty());
  EXPECT_THAT(Beat(1).message(), HasSubstr("refused connections"));
  EXPECT_FALSE(members_->NoteGone(lives_[1], 0)) << "that life is over";
  Join(1);
  EXPECT_TRUE(Beat(1).ok());
}

TEST_F(ReplicasTest, WithOneReplicaThePlaceOfAProcessThatIsGoneIsFreeAtOnce) {
  Begin(2, 1);
  time_.AdvanceMs(300);
  EXPECT_TRUE(members_->NoteGone(lives_[1], 200));
  EXPECT_THAT(members_->TakeExpired(), SizeIs(1));
  v1::JoinRequest request;
  request.set_role(v1::ROLE_SERVER);
  request.set_address("elsewhere:1");
  request.set_index_plus_one(2);
  request.set_cluster("test");
  request.set_shards(kReplicatedShards);
  EXPECT_TRUE(members_->Join(request).ok());
}

TEST_F(ReplicasTest, OneThatWasHeardOfAfterItsConnectionEndedIsNotGone) {
  SyncAll();
  time_.AdvanceMs(300);
  ASSERT_TRUE(Beat(1).ok());
  time_.AdvanceMs(100);
  EXPECT_FALSE(members_->NoteGone(lives_[1], 101));
  EXPECT_THAT(members_->TakeExpired(), IsEmpty());
  EXPECT_TRUE(Beat(1).ok());
}

TEST_F(ReplicasTest, OfTwoThatAreGoneTogetherTheOwnersKeepTheirShards) {
  SyncAll();
  const v1::RouteResponse before = *members_->shards().Route();
  time_.AdvanceMs(300);
  EXPECT_TRUE(members_->NoteGone(lives_[0], 200));
  EXPECT_TRUE(members_->NoteGone(lives_[1], 200));
  members_->TakeExpired();
  const v1::RouteResponse after = *members_->shards().Route();
  for (ShardId shard = 0; shard < kReplicatedShards; ++shard) {
    const bool both = before.owners(shard) < 2 && before.followers(shard) < 3;
    EXPECT_EQ(after.owners(shard), both ? before.owners(shard) : 2) << shard;
  }
}

TEST_F(ReplicasTest, ThePsThatServedTheCoordinatorAndIsGoneIsOutUnlessItIsHeardOf) {
  SyncAll();
  Restart();
  ASSERT_TRUE(Beat(1).ok());
  members_->NoteGoneAt("host:2");
  EXPECT_THAT(members_->TakeExpired(), IsEmpty()) << "it was heard of";
  members_->NoteGoneAt("host:3");
  EXPECT_THAT(members_->TakeExpired(), SizeIs(1));
  EXPECT_THAT(Map().ShardsOf(1), Not(IsEmpty()));
  EXPECT_TRUE(Map().Away(2));
}

TEST_F(ReplicasTest, TheStatusCountsWhoIsInSync) {
  EXPECT_EQ(members_->Status().replicas(), 2);
  EXPECT_EQ(members_->Status().shards_in_sync(), 0);
  Sync({0, 5, 7});
  EXPECT_EQ(members_->Status().shards_in_sync(), 3);
}

// The following are about another life of the coordinator. It takes server 0 for ended, and the others for silent.

TEST_F(ReplicasTest, AnotherLifeOfTheCoordinatorKnowsThemAll) {
  Sync({1, 4});
  LetExpire({2});
  Sync({1});
  const v1::CoordinatorState state = members_->SaveState();
  Restart();
  EXPECT_TRUE(Beat(1).ok());
  const v1::CoordinatorState next = members_->SaveState();
  EXPECT_EQ(next.epoch(), state.epoch());
  EXPECT_THAT(Owners(), testing::ElementsAreArray(state.owners()));
  EXPECT_THAT(std::vector<uint32_t>(next.followers().begin(), next.followers().end()),
              testing::ElementsAreArray(state.followers()));
  EXPECT_THAT(std::vector<uint64_t>(next.terms().begin(), next.terms().end()),
              testing::ElementsAreArray(state.terms()));
}

TEST_F(ReplicasTest, PsZerosShardsWaitUntilTheFollowersAreHeardOfAndThenAreTheirs) {
  Sync({0, 3, 6});  // Followed by 1, 2, 1.
  const uint64_t epoch = members_->shards().epoch();
  Restart();
  EXPECT_EQ(members_->shards().Route().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(RouteError(),
            "waiting for followers that had all: "
            "ps 1 (host:2), not heard of since the coordinator was started again 0.0 s ago, may own 2 of the shards of "
            "ps 0; ps 2 (host:3), not heard of since the coordinator was started again 0.0 s ago, may own 1 of the "
            "shards of ps 0");
  EXPECT_THAT(members_->TakeFailovers(), ElementsAre(HasSubstr("2 open until ps 1 is heard of, 1 open until ps 2 is")));
  Join(0);
  EXPECT_FALSE(members_->shards().Route().ok());
  EXPECT_TRUE(Beat(1).ok());
  EXPECT_EQ(Owners()[0], 1);
  EXPECT_EQ(Owners()[6], 1);
  EXPECT_EQ(Owners()[3], 0);
  EXPECT_THAT(RouteError(), HasSubstr("had all: ps 2 (host:3)"));
  EXPECT_TRUE(Beat(2).ok());
  EXPECT_EQ(Map().OwnerOf(3), 2);
  EXPECT_EQ(Map().OwnerOf(9), 0) << "nobody else has it";
  EXPECT_GT(Map().TermOf(0), epoch);
  EXPECT_GT(Map().TermOf(3), Map().TermOf(0));
  EXPECT_EQ(Map().FollowerOf(0), 0) << "its next life";
  EXPECT_FALSE(Map().InSync(0));
}

TEST_F(ReplicasTest, AFollowerThatIsNotHeardOfWithinItsLeaseGetsNothing) {
  Sync({0, 3});
  Restart();
  Join(0);
  LetExpire({1, 2});
  EXPECT_EQ(Owners(), InitialOwners(kReplicatedShards, 3));
  EXPECT_TRUE(members_->shards().Route().ok());
  EXPECT_THAT(InSync(), IsEmpty());
}

TEST_F(ReplicasTest, AFollowersNextLifeGetsNothing) {
  Sync({0});
  Restart();
  Join(0);
  Join(1);
  EXPECT_EQ(Map().OwnerOf(0), 0);
  EXPECT_THAT(InSync(), IsEmpty());
}

TEST_F(ReplicasTest, WhenAllAreStartedAgainEachHasItsOwn) {
  for (const std::vector<uint32_t>& order : std::vector<std::vector<uint32_t>>{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}}) {
    Begin(3, 2);
    SyncAll();
    Restart();
    for (const uint32_t server : order) Join(server);
    EXPECT_EQ(Owners(), InitialOwners(kReplicatedShards, 3));
    EXPECT_TRUE(members_->shards().Route().ok()) << RouteError();
    EXPECT_THAT(InSync(), IsEmpty());
    for (const uint32_t server : order) EXPECT_TRUE(Beat(server).ok());
    SyncAll();
  }
}

TEST_F(ReplicasTest, WhatIsOpenStaysOpenInFurtherLivesThoughTheOwnersNextLifeHasJoined) {
  Sync({1});  // Of server 1; followed by 2.
  Restart();
  Join(0);
  Join(1);
  EXPECT_THAT(RouteError(), HasSubstr("may own 1 of the shards of ps 1"));
  EXPECT_FALSE(*Report(1, 1, 0, false)) << "it cannot release itself";
  EXPECT_FALSE(*Report(1, 1, lives_[2], true));
  Restart();
  Join(0);
  EXPECT_TRUE(Beat(1).ok());
  EXPECT_THAT(RouteError(), HasSubstr("may own 1 of the shards of ps 1"));
  EXPECT_TRUE(Beat(2).ok());
  EXPECT_EQ(Map().OwnerOf(1), 2);
}

TEST_F(ReplicasTest, WhatIsOpenIsSaved) {
  Sync({1});
  Restart();
  const uint64_t changes = members_->changes(), route_changes = members_->shards().changes();
  Join(1);
  EXPECT_GT(members_->changes(), changes);
  EXPECT_GT(members_->shards().changes(), route_changes);
  EXPECT_TRUE(members_->SaveState().undecided(1));
}

TEST_F(ReplicasTest, AnOwnerThatIsHeardOfInTheSameLifeKeepsItsShards) {
  SyncAll();
  Restart();
  Join(0);
  EXPECT_TRUE(Beat(1).ok());
  EXPECT_TRUE(Beat(2).ok());
  EXPECT_EQ(Map().OwnerOf(1), 1);
  EXPECT_EQ(Map().OwnerOf(2), 2);
  EXPECT_THAT(Map().ShardsOf(0), IsEmpty());
  EXPECT_TRUE(Map().InSync(1)) << "between 1 and 2 nothing has changed";
  EXPECT_FALSE(Map().InSync(4)) << "server 0 followed it";
}

TEST_F(ReplicasTest, AnOwnerThatIsNotHeardOfAgainLosesThemAfterItsLease) {
  Sync({1});
  Restart();
  Join(0);
  EXPECT_TRUE(Beat(2).ok());
  EXPECT_EQ(Map().OwnerOf(1), 1);
  LetExpire({1});
  EXPECT_EQ(Map().OwnerOf(1), 2);
}

TEST_F(ReplicasTest, AnEndThatTheLastLifeHadNotActedOnIsActedOn) {
  Sync({1, 4});  // Of server 1; followed by 2 and 0.
  time_.AdvanceMs(kLeaseMs - 1);
  EXPECT_TRUE(Beat(0).ok());
  EXPECT_TRUE(Beat(2).ok());
  time_.AdvanceMs(1);  // Server 1's has ended.
  Restart();
  EXPECT_THAT(InSync(), ElementsAre(1)) << "server 0 has ended too";
  EXPECT_TRUE(Beat(2).ok());
  EXPECT_EQ(Map().OwnerOf(1), 2);
  EXPECT_EQ(Map().OwnerOf(4), 1);
}

TEST_F(ReplicasTest, FollowersComeAndGoWithTheConfiguration) {
  Begin(3, 1);
  const uint64_t epoch = members_->shards().epoch();
  Restart(members_->SaveState(), 2);
  EXPECT_EQ(members_->shards().epoch(), epoch + 1);
  EXPECT_GT(members_->changes(), 0) << "to be saved";
  const v1::RouteResponse route = *members_->shards().Route();
  EXPECT_EQ(std::vector<uint32_t>(route.followers().begin(), route.followers().end()),
            InitialFollowers(kReplicatedShards, 3));
  Join(0);
  SyncAll();
  LetExpire({1});
  const uint64_t term = Map().TermOf(1);
  EXPECT_GT(term, 0);
  const std::vector<uint32_t> owners = Owners();
  Restart(members_->SaveState(), 1);
  EXPECT_EQ(members_->shards().Route()->followers_size() + members_->shards().Route()->in_sync_size(), 0);
  EXPECT_EQ(Owners(), owners);
  EXPECT_EQ(Map().TermOf(1), term) << "what is on the disks is of it";
  Restart(members_->SaveState(), 2);
  Join(0);
  Join(1);
  EXPECT_EQ(Owners(), owners);
  EXPECT_GE(Map().TermOf(1), term);
  for (ShardId shard = 0; shard < kReplicatedShards; ++shard) {
    EXPECT_TRUE(Map().FollowerOf(shard).has_value());
    EXPECT_NE(Map().FollowerOf(shard), Map().OwnerOf(shard));
  }
}

TEST_F(ReplicasTest, AnOwnerThatIsStartedAgainBeginsATerm) {
  for (const uint32_t replicas : {1u, 2u}) {
    Begin(2, replicas);
    LetExpire({1});
    Join(1);
    const ShardMap map = Map();
    for (ShardId shard = 0; shard < kReplicatedShards; ++shard) {
      EXPECT_EQ(map.OwnerOf(shard), InitialOwners(kReplicatedShards, 2)[shard]) << "nobody was in sync";
      EXPECT_EQ(map.TermOf(shard), map.OwnerOf(shard) == 1 ? map.epoch() : 0) << shard;
    }
  }
}

TEST_F(ReplicasTest, AMapThatIsDealtAnewIsOfANewTerm) {
  SyncAll();
  const v1::CoordinatorState state = members_->SaveState();
  Membership four(OptionsWith(4, 2));
  ASSERT_TRUE(four.Restore(state).ok());
  members_ = std::make_unique<Membership>(OptionsWith(4, 2));
  ASSERT_TRUE(members_->Restore(state).ok());
  lives_.assign(4, 0);
  for (uint32_t server = 0; server < 4; ++server) Join(server);
  EXPECT_EQ(members_->shards().epoch(), state.epoch() + 1);
  EXPECT_THAT(members_->shards().Route()->terms(), Each(state.epoch() + 1));
  EXPECT_EQ(Owners(), InitialOwners(kReplicatedShards, 4));
  EXPECT_THAT(InSync(), IsEmpty());
}

TEST_F(ReplicasTest, AStateThatContradictsItselfIsRefused) {
  Sync({0, 1});
  const v1::CoordinatorState good = members_->SaveState();
  using State = v1::CoordinatorState;
  for (const auto& spoil : std::vector<std::function<void(State*)>>{
           [](State* state) { state->add_followers(1); },
           [](State* state) { state->add_in_sync(false); },
           [](State* state) { state->add_terms(0); },
           [](State* state) { state->mutable_undecided()->RemoveLast(); },
           [](State* state) { state->clear_owners(); },
           [](State* state) { state->set_followers(0, 4); },
           [](State* state) { state->set_followers(0, 1); },
           [](State* state) { state->set_followers(1, 0); },
           [](State* state) { state->clear_followers(); },
           [](State* state) { state->set_undecided(2, true); },
           [](State* state) { state->set_terms(2, 1000); },
       }) {
    State state = good;
    spoil(&state);
    Membership other(OptionsWith(3, 2));
    EXPECT_EQ(other.Restore(state).code(), absl::StatusCode::kDataLoss) << state.ShortDebugString();
    EXPECT_EQ(other.SaveState().epoch(), 0);
  }
  EXPECT_TRUE(Membership(OptionsWith(3, 2)).Restore(good).ok());
}

}  // namespace
}  // namespace lodestone::server
