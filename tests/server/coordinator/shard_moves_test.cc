// Moves in Membership, without replicas: what is planned, begun, handed over and given up.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"
#include "tests/server/coordinator/replicated_members.h"

namespace lodestone::server {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint32_t kMoveLeaseMs = 1000;
constexpr uint32_t kMoveShards = 6;
constexpr uint32_t kMoveServers = 3;

// Shard s is server s mod 3's.
class ShardMovesTest : public ::testing::Test {
 protected:
  ShardMovesTest() {
    members_ = std::make_unique<Membership>(Options(1));
    for (uint32_t server = 0; server < kMoveServers; ++server) Join(server);
  }

  Membership::Options Options(uint32_t replicas) const {
    return ReplicatedOptions(kMoveServers, kMoveShards, replicas, kMoveLeaseMs, /*ends_with_server_0=*/false, &time_);
  }
  void Join(uint32_t server, bool shared = false) {
    v1::JoinRequest request = ServerJoin(server, kMoveShards);
    request.set_token(10 * (server + 1) + ++joins_);
    request.mutable_data()->set_folder(70 + server);
    request.mutable_data()->set_shared(shared);
    request.mutable_data()->set_served(shared);
    const auto joined = members_->Join(request);
    ASSERT_TRUE(joined.ok()) << joined.status();
    lives_[server] = joined->incarnation();
  }
  void Beat(uint32_t server) {
    v1::HeartbeatRequest request;
    request.set_incarnation(lives_[server]);
    ASSERT_TRUE(members_->Heartbeat(request).ok());
  }
  // The lease of `dead` ends.
  void LetExpire(uint32_t dead) {
    time_.AdvanceMs(1);
    for (uint32_t server = 0; server < kMoveServers; ++server) {
      if (server != dead) Beat(server);
    }
    time_.AdvanceMs(kMoveLeaseMs - 1);
    members_->TakeExpired();
  }
  absl::StatusOr<v1::MoveResponse> Move(const std::vector<uint32_t>& shards, uint32_t server, bool cancel = false) {
    v1::MoveRequest request;
    request.mutable_shards()->Add(shards.begin(), shards.end());
    request.set_server(server);
    request.set_cancel(cancel);
    return members_->Move(request);
  }
  absl::StatusOr<v1::MoveResponse> Level() {
    v1::MoveRequest request;
    request.set_level(true);
    return members_->Move(request);
  }
  absl::StatusOr<v1::DrainResponse> Drain(uint32_t server, bool undo = false) {
    v1::DrainRequest request;
    request.set_server(server);
    request.set_undo(undo);
    return members_->Drain(request);
  }
  // The owner reports its follower in sync; whether that was accepted.
  bool ReportInSync(ShardId shard, std::optional<uint64_t> term = std::nullopt) {
    const uint32_t owner = Owners()[shard], follower = Followers()[shard];
    v1::ReportSyncRequest request;
    request.set_incarnation(lives_[owner]);
    auto* const report = request.add_reports();
    report->set_shard(shard);
    report->set_follower(follower == 0 ? 0 : lives_[follower - 1]);
    report->set_in_sync(true);
    report->set_term(term.value_or(members_->shards().terms()[shard]));
    const auto told = members_->ReportSync(request);
    EXPECT_TRUE(told.ok()) << told.status();
    return told.ok() && told->accepted(0);
  }
  // All copies that are being made get in sync, until none is.
  void FinishMoves() {
    for (uint32_t round = 0; round < kMoveShards && members_->shards().HasFollowers(); ++round) {
      for (ShardId shard = 0; shard < kMoveShards; ++shard) {
        if (Followers()[shard] > 0) ReportInSync(shard);
      }
    }
  }
  const std::vector<uint32_t>& Owners() const { return members_->shards().owners(); }
  const std::vector<uint32_t>& Followers() const { return members_->shards().followers(); }

  ManualTime time_;
  std::unique_ptr<Membership> members_;
  Incarnation lives_[kMoveServers] = {};
  uint64_t joins_ = 0;
};

TEST_F(ShardMovesTest, AShardIsItsFollowersOnceThatIsInSync) {
  const auto planned = Move({0}, 2);
  ASSERT_TRUE(planned.ok()) << planned.status();
  EXPECT_EQ(planned->planned(), 1);
  EXPECT_THAT(Followers(), ElementsAre(3, 0, 0, 0, 0, 0));
  EXPECT_THAT(Owners(), ElementsAre(0, 1, 2, 0, 1, 2)) << "until then it is served where it was";
  const uint64_t epoch = members_->shards().epoch();
  EXPECT_TRUE(ReportInSync(0));
  EXPECT_THAT(Owners(), ElementsAre(2, 1, 2, 0, 1, 2));
  EXPECT_THAT(Followers(), Each(0));
  EXPECT_EQ(members_->shards().terms()[0], epoch + 1);
  EXPECT_THAT(members_->Status().moves(), IsEmpty());
}

TEST_F(ShardMovesTest, ShardsThatGoTogetherChangeTheirOwnerTogether) {
  ASSERT_TRUE(Move({0, 3}, 1).ok());
  EXPECT_TRUE(ReportInSync(3));
  EXPECT_THAT(Owners(), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_TRUE(ReportInSync(0));
  EXPECT_THAT(Owners(), ElementsAre(1, 1, 2, 1, 1, 2));
}

TEST_F(ShardMovesTest, AReportFromBeforeTheShardMovedAwayAndBackCountsForNothing) {
  const uint64_t former = members_->shards().terms()[0];
  for (const uint32_t to : {1u, 0u}) {
    ASSERT_TRUE(Move({0}, to).ok());
    ASSERT_TRUE(ReportInSync(0));
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
  ASSERT_TRUE(ReportInSync(2));
  Join(0);
  EXPECT_EQ(Followers()[0], 2) << "the plan goes on";
}

TEST_F(ShardMovesTest, AnOwnerThatEndsWithItsTargetInSyncHasHandedItsShardOver) {
  ASSERT_TRUE(Move({0, 3}, 1).ok());
  ASSERT_TRUE(ReportInSync(0));  // Shard 3 is not, and holds both up.
  LetExpire(0);
  EXPECT_EQ(Owners()[0], 1);
  EXPECT_EQ(Owners()[3], 0);
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

TEST_F(ShardMovesTest, ACoordinatorThatHasLostItsStateTakesNoFirstOwnerForGrantedWhereShardsHaveMoved) {
  members_ = std::make_unique<Membership>(Options(1));
  for (uint32_t server = 0; server < kMoveServers; ++server) Join(server, /*shared=*/true);
  EXPECT_EQ(members_->shards().unserved(), kMoveShards);
}

TEST_F(ShardMovesTest, WithReplicasNoMoveIsPlanned) {
  members_ = std::make_unique<Membership>(Options(2));
  for (uint32_t server = 0; server < kMoveServers; ++server) Join(server);
  EXPECT_TRUE(absl::IsFailedPrecondition(Move({0}, 1).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(Drain(1).status()));
}

}  // namespace
}  // namespace lodestone::server
