// What an update waits for while a shard has a follower and a learner.
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "server/replication/owned_shards.h"

namespace lodestone::server {
namespace {

constexpr uint32_t kFollower = 1, kLearner = 2;
constexpr Incarnation kFollowersLife = 11, kLearnersLife = 12;

class OwnedShardTest : public ::testing::Test {
 protected:
  OwnedShardTest() {
    owned_.Reset(/*owned=*/true, /*term=*/1, /*now_ms=*/0);
    owned_.SetAppended(5);
    Attach(&owned_.follower(), kFollower, kFollowersLife);
    Join(&owned_.follower());
  }
  static void Attach(ShardFollower* one, uint32_t server, Incarnation life) {
    ASSERT_EQ(one->sync().Attach(server, life, 0, std::nullopt), ShardSync::Attached::kNeedsState);
    one->sync().StateSent();
  }
  // It confirms all, and the coordinator hears of it.
  void Join(ShardFollower* one) {
    SettledAcks settled;
    one->Confirm(owned_.appended(), /*now_ms=*/0, &settled);
    const auto report = one->sync().TakeReport();
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(one->sync().OnReport(*report, /*accepted=*/true, /*epoch=*/3), ShardSync::Outcome::kNothing);
  }
  // An update comes, and waits; null: it is acknowledged.
  PendingAckRef Push(std::string* done) {
    owned_.SetAppended(owned_.appended() + 1);
    if (!owned_.HoldsUp(owned_.appended())) return nullptr;
    auto ack = std::make_shared<PendingAck>();
    owned_.Await(owned_.appended(), /*now_ms=*/0, ack);
    ack->SetDone([done](const absl::Status& status) { *done = status.ToString(); });
    ack->Settle(absl::OkStatus());
    return ack;
  }
  void Confirm(ShardFollower* one) {
    SettledAcks settled;
    one->Confirm(owned_.appended(), /*now_ms=*/1, &settled);
  }

  UnconfirmedBytes bytes_;
  OwnedShard owned_{&bytes_};
};

TEST_F(OwnedShardTest, ALearnerThatHasNotAllYetHoldsNothingUp) {
  Attach(&owned_.learner(), kLearner, kLearnersLife);
  std::string done;
  ASSERT_NE(Push(&done), nullptr);
  Confirm(&owned_.follower());
  EXPECT_EQ(done, "OK");
}

TEST_F(OwnedShardTest, OnceALearnerCountsAnUpdateWaitsForBoth) {
  Attach(&owned_.learner(), kLearner, kLearnersLife);
  SettledAcks settled;
  owned_.learner().Confirm(5, /*now_ms=*/0, &settled);
  std::string done;
  ASSERT_NE(Push(&done), nullptr);
  Confirm(&owned_.follower());
  EXPECT_EQ(done, "") << "the coordinator may know the learner as the follower already";
  Confirm(&owned_.learner());
  EXPECT_EQ(done, "OK");
}

TEST_F(OwnedShardTest, OnceALearnerIsTheFollowerNothingWaitsForTheOneBefore) {
  Attach(&owned_.learner(), kLearner, kLearnersLife);
  SettledAcks settled;
  owned_.learner().Confirm(5, /*now_ms=*/0, &settled);
  std::string done;
  ASSERT_NE(Push(&done), nullptr);
  Join(&owned_.learner());
  owned_.LearnerFollows(/*shard=*/0, /*epoch=*/4, &settled);
  settled.Run();
  EXPECT_EQ(done, "OK");
  EXPECT_EQ(owned_.follower().sync().server(), kLearner);
  EXPECT_EQ(owned_.follower().sync().state(), ShardSync::State::kInSync);
  EXPECT_EQ(owned_.learner().sync().follower(), 0u);
  EXPECT_EQ(&owned_.ReportedOf(kFollowersLife), &owned_.follower()) << "a late answer about it means nothing";
}

// Seed 31347 of the simulation.
TEST_F(OwnedShardTest, AHandoverThatIsAskedForBeforeTheLearnersReportIsAnsweredIsOfTheLearner) {
  Attach(&owned_.learner(), kLearner, kLearnersLife);
  SettledAcks settled;
  owned_.learner().Confirm(5, /*now_ms=*/0, &settled);
  owned_.follower().sync().GiveUp(/*handover=*/7, /*now_ms=*/0);
  Join(&owned_.learner());
  owned_.LearnerFollows(/*shard=*/0, /*epoch=*/4, &settled);
  EXPECT_TRUE(owned_.follower().sync().ReadyToGiveUp());
  const auto report = owned_.follower().sync().TakeReport();
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->gives_up, 7u);
  EXPECT_EQ(report->follower, kLearnersLife);
}

TEST_F(OwnedShardTest, APsThatFollowsByAnOldMapOustsNoFollowerThatCounts) {
  FollowStream other(nullptr, nullptr), learner(nullptr, nullptr), same(nullptr, nullptr);
  other.SetFollower(3, 33, {});
  learner.SetFollower(kLearner, kLearnersLife, {0});
  same.SetFollower(kFollower, kFollowersLife + 1, {});
  EXPECT_FALSE(owned_.WouldOust(other, 0)) << "no map has come, and the coordinator may have chosen it";
  owned_.SetNamed(kFollower + 1, /*epoch=*/4);
  EXPECT_TRUE(owned_.WouldOust(other, 0));
  EXPECT_FALSE(owned_.WouldOust(learner, 0));
  EXPECT_FALSE(owned_.WouldOust(same, 0)) << "its next life";
  owned_.SetNamed(3 + 1, /*epoch=*/3);
  EXPECT_TRUE(owned_.WouldOust(other, 0)) << "that was an older map";
  owned_.SetNamed(3 + 1, /*epoch=*/5);
  EXPECT_FALSE(owned_.WouldOust(other, 0));
}

TEST_F(OwnedShardTest, TheFollowerBeforeALearnerOustsItNotAndBeginsAnewIfItIsToFollowAgain) {
  const auto stream = std::make_shared<FollowStream>(nullptr, nullptr);
  stream->SetFollower(kFollower, kFollowersLife, {});
  SettledAcks settled;
  QueuedSends sends;
  ASSERT_EQ(owned_.follower().Attach(stream, owned_.appended(), /*now_ms=*/0, &settled, &sends),
            ShardSync::Attached::kResumes);
  Attach(&owned_.learner(), kLearner, kLearnersLife);
  owned_.learner().Confirm(5, /*now_ms=*/0, &settled);
  Join(&owned_.learner());
  EXPECT_FALSE(stream->HasDropped(0));
  owned_.LearnerFollows(/*shard=*/0, /*epoch=*/4, &settled);
  EXPECT_TRUE(stream->HasDropped(0));
  EXPECT_EQ(owned_.With(stream.get()), nullptr);
  EXPECT_TRUE(owned_.WouldOust(*stream, 0)) << "before the next map";
}

// With cluster.in_sync_min: 2, and a learner that counted while the follower did not.
TEST(OwnedShardsTest, WhatOnlyALearnerWasWaitedForIsNotAcknowledgedWhenThatLeaves) {
  UnconfirmedBytes bytes;
  OwnedShards shards(1, {.patience_ms = 10, .in_sync_min = 2}, &bytes);
  OwnedShard& owned = shards[0];
  owned.Reset(/*owned=*/true, /*term=*/1, /*now_ms=*/0);
  owned.SetAppended(5);
  ASSERT_EQ(owned.learner().sync().Attach(kLearner, kLearnersLife, 0, std::nullopt), ShardSync::Attached::kNeedsState);
  owned.learner().sync().StateSent();
  SettledAcks settled;
  owned.learner().Confirm(5, /*now_ms=*/0, &settled);
  EXPECT_TRUE(shards.CheckHeld(0, 5).ok()) << "there are two copies";
  owned.SetAppended(6);
  ASSERT_TRUE(owned.HoldsUp(6));
  absl::Status done;
  auto ack = std::make_shared<PendingAck>();
  owned.Await(6, /*now_ms=*/0, ack);
  ack->SetDone([&done](const absl::Status& status) { done = status; });
  ack->Settle(absl::OkStatus());
  owned.learner().Detach(/*now_ms=*/1);
  v1::ReportSyncRequest request;
  ASSERT_TRUE(shards.CollectReports(&request));
  ASSERT_EQ(request.reports_size(), 1);
  EXPECT_EQ(request.reports(0).follower(), kLearnersLife);
  EXPECT_TRUE(shards.TakeOutcome(request.reports(0), /*accepted=*/true, /*epoch=*/3, /*now_ms=*/2, &settled));
  settled.Run();
  EXPECT_TRUE(absl::IsUnavailable(done)) << done;
}

TEST_F(OwnedShardTest, ReportsAreOfTheOneThatTheyName) {
  Attach(&owned_.learner(), kLearner, kLearnersLife);
  EXPECT_EQ(&owned_.ReportedOf(kLearnersLife), &owned_.learner());
  EXPECT_EQ(&owned_.ReportedOf(kFollowersLife), &owned_.follower());
  EXPECT_EQ(&owned_.ReportedOf(0), &owned_.follower());
}

}  // namespace
}  // namespace lodestone::server
