// What an update waits for while a shard has followers and a learner.
#include <memory>
#include <optional>
#include <string>

#include "common/wire/shard_map.h"
#include "gtest/gtest.h"
#include "server/replication/owned_shards.h"

namespace lodestone::server {
namespace {

constexpr uint32_t kFollower = 1, kSecond = 2, kLearner = 3;
constexpr Incarnation kFollowersLife = 11, kSecondsLife = 12, kLearnersLife = 13;

// Of one shard, owned by ps 0.
ShardMap MapOf(uint64_t epoch, std::optional<uint32_t> first, bool in_sync, std::optional<uint32_t> learner = {},
               std::optional<uint32_t> second = {}, bool second_in_sync = false) {
  v1::RouteResponse route;
  route.set_epoch(epoch);
  for (uint32_t server = 0; server < 5; ++server) route.add_servers();
  route.add_owners(0);
  route.add_followers(first.has_value() ? *first + 1 : 0);
  route.add_in_sync(in_sync);
  if (second.has_value()) {
    route.add_second_followers(*second + 1);
    route.add_second_in_sync(second_in_sync);
  }
  if (learner.has_value()) route.add_learners(*learner + 1);
  return *ShardMap::FromProto(route);
}

class OwnedShardTest : public ::testing::Test {
 protected:
  OwnedShardTest() {
    owned_.Reset(/*owned=*/true, /*term=*/1, /*now_ms=*/0);
    owned_.SetAppended(5);
    follower_ = Attach(kFollower, kFollowersLife);
    Join(follower_, /*epoch=*/3);
  }
  ShardFollower* Attach(uint32_t server, Incarnation life) {
    const auto one = owned_.Begin(server);
    EXPECT_TRUE(one.ok()) << one.status();
    EXPECT_EQ((*one)->sync().Attach(life, 0, std::nullopt), ShardSync::Attached::kNeedsState);
    (*one)->sync().StateSent();
    return *one;
  }
  // It confirms all, and the coordinator hears of it.
  void Join(ShardFollower* one, uint64_t epoch) {
    Confirm(one);
    const auto report = one->sync().TakeReport();
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(one->sync().OnReport(*report, /*accepted=*/true, epoch), ShardSync::Outcome::kNothing);
  }
  // An update comes, and waits; false: it is acknowledged.
  bool Push(absl::Status* done) {
    *done = absl::UnknownError("it waits");
    owned_.SetAppended(owned_.appended() + 1);
    if (!owned_.HoldsUp(owned_.appended())) return false;
    const auto ack = std::make_shared<PendingAck>();
    owned_.Await(owned_.appended(), /*now_ms=*/0, ack);
    ack->SetDone([done](const absl::Status& status) { *done = status; });
    ack->Settle(absl::OkStatus());
    return true;
  }
  void Confirm(ShardFollower* one) {
    SettledAcks settled;
    one->Confirm(owned_.appended(), /*now_ms=*/1, &settled);
  }
  size_t SetMap(const ShardMap& map, uint32_t in_sync_min = 1) {
    SettledAcks settled;
    return owned_.SetMap(map, /*shard=*/0, in_sync_min, absl::UnavailableError("too few copies"), /*now_ms=*/2,
                         &settled);
  }

  UnconfirmedBytes bytes_;
  OwnedShard owned_{&bytes_};
  ShardFollower* follower_ = nullptr;
};

TEST_F(OwnedShardTest, ALearnerThatHasNotAllYetHoldsNothingUp) {
  Attach(kLearner, kLearnersLife);
  absl::Status done;
  ASSERT_TRUE(Push(&done));
  Confirm(follower_);
  EXPECT_TRUE(done.ok()) << done;
}

TEST_F(OwnedShardTest, OnceALearnerCountsAnUpdateWaitsForBoth) {
  ShardFollower* const learner = Attach(kLearner, kLearnersLife);
  Confirm(learner);
  absl::Status done;
  ASSERT_TRUE(Push(&done));
  Confirm(follower_);
  EXPECT_FALSE(done.ok()) << "the coordinator may know the learner as the follower already";
  Confirm(learner);
  EXPECT_TRUE(done.ok()) << done;
}

TEST_F(OwnedShardTest, OnceAMapNamesALearnerAsTheFollowerNothingWaitsForTheOneBefore) {
  ShardFollower* const learner = Attach(kLearner, kLearnersLife);
  Join(learner, /*epoch=*/4);
  absl::Status done;
  ASSERT_TRUE(Push(&done));
  Confirm(learner);
  EXPECT_FALSE(done.ok()) << "it may still be the follower, for all that this ps knows";
  EXPECT_EQ(SetMap(MapOf(3, kFollower, true, kLearner)), 0) << "from before";
  EXPECT_EQ(SetMap(MapOf(4, kLearner, true)), 1);
  EXPECT_TRUE(done.ok()) << done;
  EXPECT_EQ(owned_.Of(kFollower), nullptr);
  EXPECT_EQ(owned_.Of(kLearner), learner);
  EXPECT_EQ(learner->sync().state(), ShardSync::State::kInSync);
  EXPECT_EQ(owned_.OfLife(kFollowersLife), nullptr) << "a late answer about it means nothing";
  EXPECT_EQ(owned_.OfLife(kLearnersLife), learner);
}

TEST_F(OwnedShardTest, AnUpdateWaitsForBothFollowers) {
  ShardFollower* const second = Attach(kSecond, kSecondsLife);
  Join(second, /*epoch=*/4);
  EXPECT_EQ(owned_.copies_in_sync(), 3);
  SetMap(MapOf(4, kFollower, true, {}, kSecond, true));
  for (ShardFollower* const last : {follower_, second}) {
    absl::Status done;
    ASSERT_TRUE(Push(&done));
    Confirm(last == second ? follower_ : second);
    EXPECT_FALSE(done.ok());
    Confirm(last);
    EXPECT_TRUE(done.ok()) << done;
  }
}

TEST_F(OwnedShardTest, WithoutOneOfTwoFollowersUpdatesWaitForTheOtherAlone) {
  ShardFollower* const second = Attach(kSecond, kSecondsLife);
  Join(second, /*epoch=*/4);
  absl::Status done;
  ASSERT_TRUE(Push(&done));
  Confirm(second);
  EXPECT_EQ(SetMap(MapOf(6, kSecond, true, {}, kFollower, false), /*in_sync_min=*/2), 1);
  EXPECT_TRUE(done.ok()) << "two copies have it: " << done;
  EXPECT_EQ(owned_.copies_in_sync(), 2);
  ASSERT_TRUE(Push(&done));
  Confirm(second);
  EXPECT_TRUE(done.ok()) << done;
}

TEST_F(OwnedShardTest, WhereThreeCopiesAreToBeInSyncNothingIsAcknowledgedWithTwo) {
  ShardFollower* const second = Attach(kSecond, kSecondsLife);
  Join(second, /*epoch=*/4);
  absl::Status done;
  ASSERT_TRUE(Push(&done));
  Confirm(second);
  EXPECT_EQ(SetMap(MapOf(6, kSecond, true, {}, kFollower, false), /*in_sync_min=*/3), 1);
  EXPECT_TRUE(absl::IsUnavailable(done)) << done;
}

TEST_F(OwnedShardTest, ACopyOfAnUpdateIsAtEachFollowerThatCountsOrHasConfirmedIt) {
  ShardFollower* const second = Attach(kSecond, kSecondsLife);
  Join(second, /*epoch=*/4);
  owned_.SetAppended(6);
  EXPECT_EQ(owned_.CopiesOf(6), 3) << "it is acknowledged when all have it";
  SetMap(MapOf(6, kSecond, true, {}, kFollower, false));
  EXPECT_EQ(owned_.CopiesOf(6), 2);
  EXPECT_EQ(owned_.CopiesOf(5), 3) << "what it confirmed before, it has";
}

// X is late, and counts again in the request in which a learner takes its place: one answer, with one epoch, for both.
TEST_F(OwnedShardTest, AFollowerThatIsReplacedByTheEpochInWhichItCountedIsReleased) {
  absl::Status done;
  ASSERT_TRUE(Push(&done));
  EXPECT_EQ(SetMap(MapOf(3, kFollower, false)), 0) << "that is no newer";
  EXPECT_EQ(SetMap(MapOf(3, kLearner, true)), 1);
  EXPECT_TRUE(done.ok()) << done;
  EXPECT_EQ(owned_.Of(kFollower), nullptr);
}

TEST_F(OwnedShardTest, AMapThatSwapsTheFollowersChangesNothing) {
  ShardFollower* const second = Attach(kSecond, kSecondsLife);
  Join(second, /*epoch=*/4);
  EXPECT_EQ(SetMap(MapOf(5, kFollower, true, {}, kSecond, true)), 0);
  EXPECT_EQ(SetMap(MapOf(6, kSecond, true, {}, kFollower, true)), 0);
  EXPECT_EQ(owned_.copies_in_sync(), 3);
}

TEST_F(OwnedShardTest, TheFirstFollowerByTheMapIsReportedAsTheNextOwner) {
  ShardFollower* const second = Attach(kSecond, kSecondsLife);
  Join(second, /*epoch=*/4);
  SetMap(MapOf(5, kSecond, true, {}, kFollower, true));
  absl::Status done;
  ASSERT_TRUE(Push(&done));
  owned_.GiveUp(/*handover=*/5, /*now_ms=*/0);
  Confirm(follower_);
  EXPECT_FALSE(follower_->sync().ReadyToGiveUp());
  EXPECT_FALSE(second->sync().ReadyToGiveUp()) << "it has not confirmed all";
  Confirm(second);
  ASSERT_TRUE(second->sync().ReadyToGiveUp());
  const auto report = second->sync().TakeReport();
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->gives_up, 5u);
  EXPECT_EQ(report->follower, kSecondsLife);
  owned_.GiveUp(/*handover=*/0, /*now_ms=*/0);
  EXPECT_FALSE(second->sync().ReadyToGiveUp());
}

// Seed 31347 of the simulation.
TEST_F(OwnedShardTest, AHandoverThatIsAskedForBeforeTheLearnersReportIsAnsweredIsOfTheLearner) {
  ShardFollower* const learner = Attach(kLearner, kLearnersLife);
  Confirm(learner);
  const auto joins = learner->sync().TakeReport();
  ASSERT_TRUE(joins.has_value());
  SetMap(MapOf(7, kLearner, true));
  owned_.GiveUp(/*handover=*/7, /*now_ms=*/0);
  EXPECT_FALSE(learner->sync().ReadyToGiveUp());
  EXPECT_EQ(learner->sync().OnReport(*joins, /*accepted=*/true, /*epoch=*/4), ShardSync::Outcome::kNothing);
  EXPECT_TRUE(learner->sync().ReadyToGiveUp());
}

TEST_F(OwnedShardTest, APsThatFollowsByAnOldMapIsTurnedAwayWhereOthersCount) {
  EXPECT_TRUE(owned_.Begin(4).ok()) << "no map has come, and the coordinator may have chosen it";
  SetMap(MapOf(4, kFollower, true, kLearner));
  EXPECT_EQ(owned_.Of(4), nullptr);
  const auto other = owned_.Begin(4);
  EXPECT_TRUE(absl::IsUnavailable(other.status())) << other.status();
  EXPECT_EQ(other.status().message(), "is followed by ps 1, and not by ps 4");
  EXPECT_TRUE(owned_.Begin(kLearner).ok());
  EXPECT_EQ(*owned_.Begin(kFollower), follower_) << "also in its next life";
  SetMap(MapOf(5, 4, false));
  EXPECT_TRUE(owned_.Begin(4).ok());
}

TEST_F(OwnedShardTest, NoMoreFollowAtATimeThanCanBeMeant) {
  for (const uint32_t server : {2, 3}) Confirm(Attach(server, 20 + server));
  Attach(4, 24);
  EXPECT_TRUE(owned_.Begin(5).ok()) << "one that is gone makes room";
  EXPECT_EQ(owned_.Of(4), nullptr);
  Confirm(Attach(5, 25));
  EXPECT_TRUE(absl::IsUnavailable(owned_.Begin(6).status()));
}

TEST_F(OwnedShardTest, TheFollowerBeforeALearnerBeginsAnewIfItIsToFollowAgain) {
  const auto stream = std::make_shared<FollowStream>(nullptr, nullptr);
  stream->SetFollower(kFollower, kFollowersLife);
  SettledAcks settled;
  QueuedSends sends;
  ASSERT_EQ(follower_->Attach(stream, owned_.appended(), /*now_ms=*/0, &settled, &sends),
            ShardSync::Attached::kResumes);
  Join(Attach(kLearner, kLearnersLife), /*epoch=*/4);
  SetMap(MapOf(3, kFollower, true, kLearner));
  EXPECT_FALSE(stream->HasDropped(0));
  EXPECT_EQ(owned_.With(stream.get()), follower_);
  SetMap(MapOf(4, kLearner, true));
  EXPECT_TRUE(stream->HasDropped(0));
  EXPECT_EQ(owned_.With(stream.get()), nullptr);
}

// With cluster.in_sync_min: 3, and both followers of the shard in sync.
class ThreeWantedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    owned_.Reset(/*owned=*/true, /*term=*/1, /*now_ms=*/0);
    for (const uint32_t server : {kFollower, kSecond}) {
      ShardFollower* const one = *owned_.Begin(server);
      ASSERT_EQ(one->sync().Attach(10 + server, 0, std::nullopt), ShardSync::Attached::kNeedsState);
      one->sync().StateSent();
      one->Confirm(0, /*now_ms=*/0, &settled_);
    }
    v1::ReportSyncRequest joins;
    ASSERT_TRUE(shards_.CollectReports(&joins));
    for (const auto& report : joins.reports()) {
      EXPECT_FALSE(shards_.TakeOutcome(report, /*accepted=*/true, /*epoch=*/3, /*now_ms=*/0, &settled_));
    }
  }

  UnconfirmedBytes bytes_;
  OwnedShards shards_{1, {.patience_ms = 10, .in_sync_min = 3, .replicas = 3}, &bytes_};
  OwnedShard& owned_ = shards_[0];
  SettledAcks settled_;
};

// One of the two is released after the update was let in, and before it waits.
TEST_F(ThreeWantedTest, AnUpdateThatTheOtherFollowerHoldsUpIsNotAcknowledgedAtTwo) {
  ASSERT_TRUE(shards_.CheckCopies(0).ok());
  ASSERT_EQ(shards_.SetMap(MapOf(4, kFollower, true, {}, kSecond, false), 0, /*now_ms=*/2, &settled_), 1);
  owned_.SetAppended(1);
  EXPECT_TRUE(owned_.HoldsUp(1)) << "the first one does";
  EXPECT_TRUE(absl::IsUnavailable(shards_.CheckHeld(0, 1)));
  EXPECT_TRUE(absl::IsUnavailable(shards_.CheckCopies(0)));
}

TEST_F(ThreeWantedTest, AShardWithFewerCopiesThanAreWantedSaysSinceWhen) {
  v1::StatusResponse status;
  shards_.FillWait("ps 0", /*now_ms=*/5000, &status);
  EXPECT_EQ(status.waits_size(), 0);
  ASSERT_EQ(shards_.SetMap(MapOf(4, kFollower, true, {}, kSecond, false), 0, /*now_ms=*/5000, &settled_), 1);
  shards_.FillWait("ps 0", /*now_ms=*/9000, &status);
  ASSERT_EQ(status.waits_size(), 1);
  EXPECT_EQ(status.waits(0).seconds(), 4);
}

// With cluster.in_sync_min: 2, and a learner that counted while the follower did not.
TEST(OwnedShardsTest, WhatOnlyALearnerWasWaitedForIsNotAcknowledgedWhenThatLeaves) {
  UnconfirmedBytes bytes;
  OwnedShards shards(1, {.patience_ms = 10, .in_sync_min = 2}, &bytes);
  OwnedShard& owned = shards[0];
  owned.Reset(/*owned=*/true, /*term=*/1, /*now_ms=*/0);
  owned.SetAppended(5);
  const auto learner = owned.Begin(kLearner);
  ASSERT_TRUE(learner.ok()) << learner.status();
  ASSERT_EQ((*learner)->sync().Attach(kLearnersLife, 0, std::nullopt), ShardSync::Attached::kNeedsState);
  (*learner)->sync().StateSent();
  SettledAcks settled;
  (*learner)->Confirm(5, /*now_ms=*/0, &settled);
  EXPECT_TRUE(shards.CheckHeld(0, 5).ok()) << "there are two copies";
  owned.SetAppended(6);
  ASSERT_TRUE(owned.HoldsUp(6));
  absl::Status done;
  auto ack = std::make_shared<PendingAck>();
  owned.Await(6, /*now_ms=*/0, ack);
  ack->SetDone([&done](const absl::Status& status) { done = status; });
  ack->Settle(absl::OkStatus());
  (*learner)->Detach(/*now_ms=*/1);
  v1::ReportSyncRequest request;
  ASSERT_TRUE(shards.CollectReports(&request));
  ASSERT_EQ(request.reports_size(), 1);
  EXPECT_EQ(request.reports(0).follower(), kLearnersLife);
  EXPECT_TRUE(shards.TakeOutcome(request.reports(0), /*accepted=*/true, /*epoch=*/3, /*now_ms=*/2, &settled));
  settled.Run();
  EXPECT_TRUE(absl::IsUnavailable(done)) << done;
}

TEST(OwnedShardsTest, AFollowerThatANewerMapDoesNotNameWhenItsReportIsAnsweredLeaves) {
  UnconfirmedBytes bytes;
  OwnedShards shards(1, {.patience_ms = 10}, &bytes);
  OwnedShard& owned = shards[0];
  owned.Reset(/*owned=*/true, /*term=*/1, /*now_ms=*/0);
  ShardFollower* const follower = *owned.Begin(kFollower);
  SettledAcks settled;
  ASSERT_EQ(follower->sync().Attach(kFollowersLife, 0, std::nullopt), ShardSync::Attached::kNeedsState);
  follower->sync().StateSent();
  follower->Confirm(0, /*now_ms=*/0, &settled);
  v1::ReportSyncRequest joins;
  ASSERT_TRUE(shards.CollectReports(&joins));
  ASSERT_EQ(shards.SetMap(MapOf(4, kSecond, false), 0, /*now_ms=*/2, &settled), 0);
  EXPECT_FALSE(shards.TakeOutcome(joins.reports(0), /*accepted=*/true, /*epoch=*/3, /*now_ms=*/2, &settled));
  EXPECT_EQ(follower->sync().state(), ShardSync::State::kLeaving);
  v1::ReportSyncRequest leaves;
  ASSERT_TRUE(shards.CollectReports(&leaves));
  EXPECT_TRUE(shards.TakeOutcome(leaves.reports(0), /*accepted=*/true, /*epoch=*/4, /*now_ms=*/2, &settled));
  EXPECT_FALSE(follower->sync().counts());
}

// The follower of a shard changes its life while a report of the one before is under way.
TEST(OwnedShardsTest, AnAnswerAboutAFormerLifeOfAFollowerKeepsNothingFromBeingReported) {
  UnconfirmedBytes bytes;
  OwnedShards shards(1, {.patience_ms = 10}, &bytes);
  OwnedShard& owned = shards[0];
  owned.Reset(/*owned=*/true, /*term=*/1, /*now_ms=*/0);
  ShardFollower* const follower = *owned.Begin(kFollower);
  SettledAcks settled;
  const auto join = [&](Incarnation life) {
    ASSERT_EQ(follower->sync().Attach(life, 0, std::nullopt), ShardSync::Attached::kNeedsState);
    follower->sync().StateSent();
    follower->Confirm(0, /*now_ms=*/0, &settled);
  };
  join(kFollowersLife);
  v1::ReportSyncRequest joins;
  ASSERT_TRUE(shards.CollectReports(&joins));
  EXPECT_FALSE(shards.TakeOutcome(joins.reports(0), /*accepted=*/true, /*epoch=*/3, /*now_ms=*/2, &settled));
  ASSERT_EQ(shards.SetMap(MapOf(3, kFollower, true), 0, /*now_ms=*/2, &settled), 0);
  owned.GiveUp(/*handover=*/4, /*now_ms=*/2);
  v1::ReportSyncRequest gives_up;
  ASSERT_TRUE(shards.CollectReports(&gives_up));
  ASSERT_EQ(shards.SetMap(MapOf(5, kFollower, false), 0, /*now_ms=*/2, &settled), 1);
  join(kFollowersLife + 1);
  EXPECT_FALSE(shards.TakeOutcome(gives_up.reports(0), /*accepted=*/false, /*epoch=*/5, /*now_ms=*/2, &settled));
  v1::ReportSyncRequest again;
  EXPECT_TRUE(shards.CollectReports(&again));
}

}  // namespace
}  // namespace lodestone::server
