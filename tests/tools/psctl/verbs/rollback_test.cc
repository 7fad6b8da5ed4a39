#include "tools/psctl/verbs/rollback.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/psctl/client/fake_admin.h"

namespace lodestone::psctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class RollBackClusterTest : public TwoServersTest {
 protected:
  RollBackClusterTest() {
    options_.address = zero_.address;
    options_.table = "rows";
    options_.to = "early";
  }
  // Runs it; what it printed.
  std::string Output(int exit_code) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    EXPECT_EQ(RunRollback(options_), exit_code);
    errors_ = testing::internal::GetCapturedStderr();
    return testing::internal::GetCapturedStdout();
  }
  RollbackOptions options_;
  std::string errors_;
};

TEST_F(RollBackClusterTest, AsksEveryServerForTheSame) {
  EXPECT_THAT(Output(0), HasSubstr("table rows goes back to early"));
  EXPECT_THAT(errors_, IsEmpty());
  for (FakeAdmin* each : {&zero_, &one_}) {
    EXPECT_THAT(each->names(), ElementsAre("table: \"rows\" checkpoint: \"early\""));
  }
}

TEST_F(RollBackClusterTest, ShowsTheVersionsOfEachServersShards) {
  const std::string text = Output(0);
  EXPECT_THAT(text, HasSubstr("100-102"));
  EXPECT_THAT(text, HasSubstr("101-103"));
  options_.json = true;
  const auto json = nlohmann::json::parse(Output(0));
  EXPECT_EQ(json["table"], "rows");
  EXPECT_EQ(json["to"], "early");
  ASSERT_EQ(json["servers"].size(), 2u);
  const auto& shard = json["servers"][1]["shards"][2];
  EXPECT_EQ(shard["shard"], 5);
  EXPECT_EQ(shard["version_before"], 102);
  EXPECT_EQ(shard["version_after"], 103);
  EXPECT_EQ(shard["version_restored"], 7);
}

TEST_F(RollBackClusterTest, TellsWhichServerFailedAndThatItCanBeRunAgain) {
  one_.answer = grpc::Status(grpc::StatusCode::NOT_FOUND, "no checkpoint `early`");
  options_.json = true;
  const auto json = nlohmann::json::parse(Output(1));
  EXPECT_EQ(json["servers"][0]["shards"].size(), 3u);
  EXPECT_THAT(json["servers"][1]["error"].get<std::string>(), HasSubstr("no checkpoint `early`"));
  EXPECT_THAT(errors_, HasSubstr("ps 1: the ps at " + one_.address + ": no checkpoint `early`"));
  EXPECT_THAT(errors_, HasSubstr("1 of 2 servers failed: other shards may have gone back"));
  EXPECT_THAT(errors_, HasSubstr("safe to run this again"));
}

TEST_F(RollBackClusterTest, AVersionThatNoShardHasComeToIsAFailure) {
  options_.to = "1000";
  zero_.shards_back = one_.shards_back = 0;
  Output(1);
  EXPECT_THAT(errors_, HasSubstr("no shard that holds table `rows` has come to version 1000"));
  EXPECT_THAT(one_.names(), ElementsAre("table: \"rows\" version: 1000"));
  zero_.shards_back = 1;
  Output(0);
}

TEST_F(RollBackClusterTest, WantsThePsThatKnowsTheOthersAndAllOfThem) {
  options_.address = one_.address;
  one_.coordinator.clear();
  Output(1);
  EXPECT_THAT(errors_, HasSubstr("knows no coordinator yet"));
  options_.address = zero_.address;
  zero_.cluster.set_servers_expected(3);
  Output(1);
  EXPECT_THAT(errors_, HasSubstr("only 2 of the cluster's 3 servers have joined"));
  EXPECT_THAT(zero_.names(), IsEmpty());
}

TEST_F(RollBackClusterTest, RefusesAnAddressOrAPlaceThatIsNone) {
  for (const char* to : {"", "../up", "-3", "18446744073709551616", "a b"}) {
    options_.to = to;
    Output(2);
    EXPECT_THAT(errors_, HasSubstr("--to")) << to;
  }
  options_.to = "1";
  options_.address = "nowhere";
  Output(2);
  EXPECT_THAT(zero_.names(), IsEmpty());
}

TEST(MakeRollbackRequest, DigitsAreAVersionAndAllElseIsACheckpoint) {
  EXPECT_EQ(MakeRollbackRequest("t", "12")->version(), 12u);
  EXPECT_TRUE(MakeRollbackRequest("t", "0")->has_version());
  EXPECT_EQ(MakeRollbackRequest("t", "12a")->checkpoint(), "12a");
  EXPECT_EQ(MakeRollbackRequest("t", "auto-ps0-000001")->checkpoint(), "auto-ps0-000001");
}

}  // namespace
}  // namespace lodestone::psctl
