#include "tools/psctl/verbs/moves.h"

#include <atomic>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/psctl/client/fake_admin.h"

namespace lodestone::psctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TEST(ParseNumbers, ListsAndRunsAscendWithoutDoubles) {
  EXPECT_THAT(*ParseNumbers("3", 100), ElementsAre(3));
  EXPECT_THAT(*ParseNumbers("7-9,1,5,8", 100), ElementsAre(1, 5, 7, 8, 9));
}

TEST(ParseNumbers, WhatIsNoListIsNamed) {
  for (const char* text : {"", "x", "3-", "-3", "5-3", "1,,2", "1;2", "0-4294967295", "4294967296"}) {
    const auto numbers = ParseNumbers(text, 100);
    EXPECT_TRUE(absl::IsInvalidArgument(numbers.status())) << text;
  }
  EXPECT_THAT(std::string(ParseNumbers("1,5-3", 100).status().message()), HasSubstr("`5-3`"));
}

class MovesVerbTest : public TwoServersTest {
 protected:
  MovesVerbTest() {
    options_.address = one_.address;
    options_.poll_ms = 1;
  }
  std::string Output(int (*run)(const MovesOptions&), int exit_code) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    EXPECT_EQ(run(options_), exit_code);
    errors_ = testing::internal::GetCapturedStderr();
    return testing::internal::GetCapturedStdout();
  }
  MovesOptions options_;
  std::string errors_;
};

TEST_F(MovesVerbTest, MoveAsksTheCoordinatorWhicheverPsIsNamed) {
  options_.shards = "4,0-2";
  options_.server = 1;
  EXPECT_THAT(Output(&RunMove, 0), HasSubstr("shards 0-2, 4 to ps 1"));
  EXPECT_THAT(zero_.names(), ElementsAre("shards: 0 shards: 1 shards: 2 shards: 4 server: 1"));
  EXPECT_THAT(one_.names(), testing::IsEmpty());
}

TEST_F(MovesVerbTest, WhatIsMissingIsAskedFor) {
  EXPECT_EQ(Output(&RunMove, 2), "");
  EXPECT_THAT(errors_, HasSubstr("which shards?"));
  options_.shards = "3";
  Output(&RunMove, 2);
  EXPECT_THAT(errors_, HasSubstr("to which ps?"));
  EXPECT_THAT(zero_.names(), testing::IsEmpty());
}

TEST_F(MovesVerbTest, CancelNamesShardsOrNone) {
  options_.cancel = true;
  EXPECT_THAT(Output(&RunMove, 0), HasSubstr("5 planned moves are given up"));
  EXPECT_THAT(zero_.names(), ElementsAre("cancel: true"));
}

TEST_F(MovesVerbTest, DrainAndRebalanceSayWhatIsPlanned) {
  options_.server = 1;
  options_.no_wait = true;
  EXPECT_THAT(Output(&RunDrain, 0), HasSubstr("ps 1 owns 9 shards, which move to others"));
  EXPECT_THAT(Output(&RunRebalance, 0), HasSubstr("0 shards are to move"));
  options_.undo = true;
  EXPECT_THAT(Output(&RunDrain, 0), HasSubstr("psctl rebalance"));
  EXPECT_THAT(zero_.names(), ElementsAre("server: 1", "level: true", "server: 1 undo: true"));
}

TEST_F(MovesVerbTest, AddLetsAPsThatIsThereOwnShardsAndMovesItsPartToIt) {
  options_.server = 1;
  const std::string output = Output(&RunAdd, 0);
  EXPECT_THAT(output, HasSubstr("ps 1 is there and owns 9 shards; 0 shards are to move"));
  EXPECT_THAT(output, HasSubstr("ps 1 has its part"));
  EXPECT_THAT(zero_.names(), ElementsAre("server: 1 undo: true", "level: true"));
}

TEST_F(MovesVerbTest, AddWaitsUntilThePsIsThere) {
  std::atomic<int> asked{0};
  zero_.on_status = [&asked](v1::StatusResponse* response) {
    response->mutable_cluster()->mutable_servers(0)->set_alive(++asked > 2);  // Ps 1.
  };
  options_.server = 1;
  const std::string output = Output(&RunAdd, 0);
  EXPECT_THAT(output, StartsWith("waits for ps 1: start it, with server.index: 1\nps 1 is there"));
  EXPECT_THAT(output, HasSubstr("ps 1 has its part"));
  EXPECT_THAT(zero_.names(), ElementsAre("server: 1 undo: true", "level: true"));
}

TEST_F(MovesVerbTest, AddWithoutWaitFailsWhereThePsIsNotThere) {
  zero_.cluster.mutable_servers(0)->set_alive(false);  // Ps 1.
  options_.server = 1;
  options_.no_wait = true;
  Output(&RunAdd, 1);
  EXPECT_THAT(errors_, HasSubstr("ps 1 is not there: start it, with server.index: 1"));
  EXPECT_THAT(zero_.names(), testing::IsEmpty());
}

TEST_F(MovesVerbTest, AddSaysWhereThereIsNoPlaceForAPs) {
  options_.server = 2;
  Output(&RunAdd, 2);
  EXPECT_THAT(errors_, HasSubstr("there is no place for ps 2: cluster.servers is 2"));
}

TEST_F(MovesVerbTest, AddWaitsForTheFirstShardMap) {
  std::atomic<int> asked{0};
  zero_.on_status = [&asked](v1::StatusResponse* response) {
    response->mutable_cluster()->set_route_epoch(++asked > 2 ? 1 : 0);
  };
  options_.server = 1;
  EXPECT_THAT(Output(&RunAdd, 0), StartsWith("waits for the ps that the cluster begins with\nps 1 is there"));
}

TEST_F(MovesVerbTest, AddKnowsThePlacesThatAreKept) {
  zero_.cluster.set_places_kept(2);
  options_.no_wait = true;
  options_.server = 3;
  Output(&RunAdd, 1);
  EXPECT_THAT(errors_, HasSubstr("ps 3 is not there: start it, with server.index: 3"));
  options_.server = 4;
  Output(&RunAdd, 2);
  EXPECT_THAT(errors_, HasSubstr("there is no place for ps 4: cluster.servers is 4"));
}

TEST_F(MovesVerbTest, WithJsonNothingElseIsPrinted) {
  options_.json = true;
  options_.shards = "4";
  options_.server = 1;
  const auto json = nlohmann::json::parse(Output(&RunMove, 0));
  EXPECT_EQ(json["shards"], nlohmann::json({4}));
  EXPECT_EQ(json["done"], true);
}

TEST_F(MovesVerbTest, WhatTheCoordinatorRefusesIsSaid) {
  zero_.answer = grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "ps 1 is away: no shard can move there");
  options_.shards = "4";
  options_.server = 1;
  Output(&RunMove, 1);
  EXPECT_THAT(errors_, HasSubstr("ps 1 is away"));
}

}  // namespace
}  // namespace lodestone::psctl
