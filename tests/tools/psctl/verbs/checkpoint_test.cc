#include "tools/psctl/verbs/checkpoint.h"

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/psctl/client/fake_admin.h"

namespace lodestone::psctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class CheckpointClusterTest : public TwoServersTest {
 protected:
  // A part that holds these of four shards.
  static std::function<void(v1::CheckpointResponse*)> Tells(std::vector<uint32_t> shards) {
    return [shards = std::move(shards)](v1::CheckpointResponse* response) {
      response->set_shards_of_cluster(4);
      response->mutable_shard_ids()->Add(shards.begin(), shards.end());
    };
  }
};

TEST_F(CheckpointClusterTest, AsksEveryServerForTheSameName) {
  const auto parts = CheckpointCluster(zero_.address, "mine", 10'000);
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_EQ(parts->size(), 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ((*parts)[i].server, i);
    ASSERT_TRUE((*parts)[i].written.ok()) << (*parts)[i].written.status();
    EXPECT_EQ((*parts)[i].written->shards(), i + 10);
  }
  EXPECT_THAT(zero_.names(), ElementsAre("mine"));
  EXPECT_THAT(one_.names(), ElementsAre("mine"));
}

TEST_F(CheckpointClusterTest, TellsWhichServerFailedAndWhy) {
  one_.answer = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "no space left");
  const auto parts = CheckpointCluster(zero_.address, "mine", 10'000);
  ASSERT_TRUE(parts.ok());
  EXPECT_TRUE((*parts)[0].written.ok());
  EXPECT_THAT(std::string((*parts)[1].written.status().message()), HasSubstr(one_.address + ": no space left"));
  CheckpointOptions options;
  options.address = zero_.address;
  EXPECT_EQ(RunCheckpoint(options), 1);
  one_.answer = grpc::Status::OK;
  EXPECT_EQ(RunCheckpoint(options), 0);
}

// Regression: one that was not complete was asked for again. Those that had failed added what they held by then.
TEST_F(CheckpointClusterTest, TellsThatPartsAreOfDifferentMoments) {
  zero_.answer = grpc::Status(grpc::StatusCode::ALREADY_EXISTS, "checkpoint `mine` exists");
  auto parts = CheckpointCluster(zero_.address, "mine", 10'000);
  ASSERT_TRUE(parts.ok());
  const absl::Status judged = JudgeCheckpoint("mine", *parts);
  EXPECT_TRUE(absl::IsAlreadyExists(judged)) << judged;
  EXPECT_THAT(std::string(judged.message()), HasSubstr("Ps 0 had it from before, and what ps 1 wrote now"));
  one_.answer = zero_.answer;
  parts = CheckpointCluster(zero_.address, "mine", 10'000);
  ASSERT_TRUE(parts.ok());
  EXPECT_THAT(std::string(JudgeCheckpoint("mine", *parts).message()), testing::EndsWith("2 of 2 servers failed"));
}

// Regression: all servers had written their parts, and what moved from one that came to it late to one that had been
// early was in none.
TEST_F(CheckpointClusterTest, IsNotCompleteWhereAShardIsInNoPart) {
  zero_.on_checkpoint = Tells({0, 1});
  one_.on_checkpoint = Tells({3});
  const auto parts = CheckpointCluster(zero_.address, "mine", 10'000);
  ASSERT_TRUE(parts.ok()) << parts.status();
  const absl::Status judged = JudgeCheckpoint("mine", *parts);
  EXPECT_TRUE(absl::IsAborted(judged)) << judged;
  EXPECT_THAT(std::string(judged.message()), HasSubstr("no ps had shard 2 when"));
  CheckpointOptions options;
  options.address = zero_.address;
  options.name = "other";
  EXPECT_EQ(RunCheckpoint(options), 1);
  EXPECT_THAT(zero_.names(), ElementsAre("mine", "other", "other, not other", "other, not other"));
}

TEST_F(CheckpointClusterTest, IsWrittenAnewWhereAShardMovedMeanwhile) {
  zero_.on_checkpoint = Tells({0, 1});
  one_.on_checkpoint = [calls = 0](v1::CheckpointResponse* response) mutable {
    Tells(++calls == 1 ? std::vector<uint32_t>{3} : std::vector<uint32_t>{2, 3})(response);
  };
  CheckpointOptions options;
  options.address = zero_.address;
  options.name = "mine";
  EXPECT_EQ(RunCheckpoint(options), 0);
  EXPECT_THAT(zero_.names(), ElementsAre("mine", "mine, not mine"));
  EXPECT_THAT(one_.names(), ElementsAre("mine", "mine, not mine"));
}

TEST_F(CheckpointClusterTest, IsNotWrittenAnewWhereAShardIsServedByNobody) {
  zero_.on_checkpoint = Tells({0, 1});
  one_.on_checkpoint = Tells({3});
  zero_.cluster.add_unserved("ps 1 was restarted without them");
  CheckpointOptions options;
  options.address = zero_.address;
  options.name = "mine";
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunCheckpoint(options), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("ps 1 was restarted without them"));
  EXPECT_THAT(zero_.names(), ElementsAre("mine"));
  EXPECT_THAT(one_.names(), ElementsAre("mine"));
}

TEST_F(CheckpointClusterTest, WithAPsOfAnOlderVersionNothingIsKnownOfItsShards) {
  zero_.on_checkpoint = Tells({0, 1});
  const auto parts = CheckpointCluster(zero_.address, "mine", 10'000);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(JudgeCheckpoint("mine", *parts), absl::OkStatus());
}

TEST_F(CheckpointClusterTest, AsksTheCoordinatorForTheOthersWhicheverPsWasNamed) {
  const auto parts = CheckpointCluster(one_.address, "mine", 10'000);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_THAT(zero_.names(), ElementsAre("mine"));
  EXPECT_THAT(one_.names(), ElementsAre("mine"));
}

TEST_F(CheckpointClusterTest, WantsThePsThatKnowsTheOthersAndAllOfThem) {
  one_.coordinator.clear();
  EXPECT_THAT(std::string(CheckpointCluster(one_.address, "mine", 10'000).status().message()),
              HasSubstr("knows no coordinator yet"));
  zero_.cluster.set_servers_expected(3);
  EXPECT_THAT(std::string(CheckpointCluster(zero_.address, "mine", 10'000).status().message()),
              HasSubstr("only 2 of the cluster's 3 servers have joined"));
  EXPECT_THAT(zero_.names(), ElementsAre());
}

TEST_F(CheckpointClusterTest, AsksNoServerThatWasDrainedAndHasEnded) {
  v1::MemberStatus* const out = zero_.cluster.add_servers();
  out->set_index(2);
  out->set_peer(Nowhere());
  out->set_out(true);
  const auto parts = CheckpointCluster(zero_.address, "mine", 10'000);
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_EQ(parts->size(), 2u);
  out->set_out(false);
  EXPECT_EQ(CheckpointCluster(zero_.address, "more", 10'000)->size(), 3u);
}

TEST(RunCheckpoint, RefusesAnAddressOrNameThatIsNone) {
  CheckpointOptions options;
  options.address = "nowhere";
  EXPECT_EQ(RunCheckpoint(options), 2);
  options.address = "127.0.0.1:1";
  options.name = "auto-ps0-000001";
  EXPECT_EQ(RunCheckpoint(options), 2);
}

TEST(ManualCheckpointName, IsTheTimeInUtc) {
  EXPECT_EQ(ManualCheckpointName(absl::FromUnixSeconds(1'700'000'000)), "manual-20231114-221320");
}

}  // namespace
}  // namespace lodestone::psctl
