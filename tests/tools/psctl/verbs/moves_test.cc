#include "tools/psctl/verbs/moves.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/psctl/client/fake_admin.h"

namespace lodestone::psctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
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
    zero_.on_route = [this](v1::RouteResponse* route) {
      for (const auto& owner : owners_) route->add_owners(owner);
    };
  }
  // A status has these moves so many times, and none after that.
  void MovesFor(int times, const std::vector<v1::ShardMove>& moves) {
    zero_.on_status = [this, times, moves](v1::StatusResponse* response) {
      if (++asked_ > times) return;
      for (const v1::ShardMove& move : moves) *response->mutable_cluster()->add_moves() = move;
    };
  }
  static v1::ShardMove MoveOf(uint32_t shard, uint32_t from, uint32_t to) {
    v1::ShardMove move;
    move.set_shard(shard);
    move.set_from(from);
    move.set_to(to);
    return move;
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
  std::atomic<int> asked_{0};                                            // For a status.
  std::array<std::atomic<uint32_t>, 8> owners_{1, 1, 1, 1, 1, 1, 1, 1};  // By shard.
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

TEST_F(MovesVerbTest, MoveWaitsUntilTheShardsHaveTheirOwner) {
  owners_[4] = 0;
  MovesFor(5, {MoveOf(4, 0, 1)});
  const auto on_status = zero_.on_status;
  zero_.on_status = [&](v1::StatusResponse* response) {
    on_status(response);
    if (response->cluster().moves().empty()) owners_[4] = 1;
  };
  options_.shards = "3-4";  // Ps 1 had the first.
  options_.server = 1;
  EXPECT_THAT(Output(&RunMove, 0), HasSubstr("1 shard is still to move\nps 1 owns them\n"));
}

// It was once said to be done as soon as it was planned no more.
TEST_F(MovesVerbTest, AMoveThatAnotherOperatorGivesUpFails) {
  owners_[4] = owners_[5] = 0;
  MovesFor(5, {MoveOf(4, 0, 1), MoveOf(5, 0, 1)});
  options_.shards = "3-5";
  options_.server = 1;
  EXPECT_THAT(Output(&RunMove, 1), Not(HasSubstr("owns them")));
  EXPECT_THAT(errors_, HasSubstr("1 of 3 shards moved; the rest was given up (psctl move --cancel) or given "
                                 "another target meanwhile: shards 4, 5"));
  options_.json = true;
  EXPECT_EQ(nlohmann::json::parse(Output(&RunMove, 1))["done"], false);
}

TEST_F(MovesVerbTest, AMoveThatAnotherOperatorGivesAnotherTargetFails) {
  owners_[4] = 0;
  MovesFor(1'000'000, {MoveOf(4, 0, 3)});
  options_.shards = "4";
  options_.server = 1;
  Output(&RunMove, 1);
  EXPECT_THAT(errors_, HasSubstr("0 of 1 shards moved"));
}

TEST_F(MovesVerbTest, AMoveIsDoneWhileAShardOfItStillGetsAnotherFollower) {
  v1::ShardMove of_follower = MoveOf(4, 0, 0);
  of_follower.set_of_follower(true);
  MovesFor(1'000'000, {of_follower});
  options_.shards = "4";
  options_.server = 1;
  EXPECT_THAT(Output(&RunMove, 0), HasSubstr("ps 1 owns them"));
}

TEST_F(MovesVerbTest, AnAddedPsWhosePartIsGivenUpHasNotGotIt) {
  zero_.cluster.mutable_servers(0)->set_shards_owned(1);  // Ps 1.
  zero_.cluster.mutable_servers(1)->set_shards_owned(7);
  for (size_t shard = 1; shard < owners_.size(); ++shard) owners_[shard] = 0;
  MovesFor(5, {MoveOf(5, 0, 1), MoveOf(6, 0, 1), MoveOf(7, 0, 1)});
  options_.server = 1;
  EXPECT_THAT(Output(&RunAdd, 1), Not(HasSubstr("has its part")));
  EXPECT_THAT(errors_, HasSubstr("0 of 3 shards moved"));
  EXPECT_THAT(errors_, HasSubstr("shards 5-7; psctl rebalance gives it its part"));
  asked_ = 0;
  EXPECT_THAT(Output(&RunRebalance, 1), Not(HasSubstr("no shard is left to move")));
}

TEST_F(MovesVerbTest, AnAddedPsWhosePartIsGivenUpBeforeItIsSeenHasNotGotIt) {
  zero_.cluster.mutable_servers(1)->set_shards_owned(8);  // Ps 0.
  zero_.planned = 4;
  options_.server = 1;
  EXPECT_THAT(Output(&RunAdd, 1), Not(HasSubstr("has its part")));
  EXPECT_THAT(errors_, HasSubstr("ps 1 has not its part"));
}

TEST_F(MovesVerbTest, AnAddedPsHasItsPartWhateverOthersOwnByThen) {
  zero_.cluster.mutable_servers(0)->set_shards_owned(2);  // Ps 1, which gets two of six; then ps 2 dies.
  zero_.cluster.mutable_servers(1)->set_shards_owned(4);
  for (size_t shard = 2; shard < owners_.size(); ++shard) owners_[shard] = 0;
  MovesFor(5, {MoveOf(0, 0, 1), MoveOf(1, 2, 1)});
  options_.server = 1;
  EXPECT_THAT(Output(&RunAdd, 0), HasSubstr("ps 1 has its part"));
  asked_ = 0;
  EXPECT_THAT(Output(&RunRebalance, 0), HasSubstr("no shard is left to move"));
}

TEST_F(MovesVerbTest, DrainWaitsUntilThePsHoldsNothing) {
  zero_.on_status = [this](v1::StatusResponse* response) {
    v1::MemberStatus* const one = response->mutable_cluster()->mutable_servers(0);
    one->set_draining(true);
    one->set_shards_following(++asked_ > 5 ? 0 : 2);
  };
  options_.server = 1;
  EXPECT_THAT(Output(&RunDrain, 0), HasSubstr("2 shards are still to move\nps 1 holds no shard: it can be stopped"));
}

// It once waited for ever.
TEST_F(MovesVerbTest, ADrainThatAnotherOperatorUndoesFails) {
  zero_.on_status = [this](v1::StatusResponse* response) {
    v1::MemberStatus* const one = response->mutable_cluster()->mutable_servers(0);
    one->set_draining(++asked_ < 6);
    one->set_shards_owned(3);
  };
  options_.server = 1;
  EXPECT_THAT(Output(&RunDrain, 1), Not(HasSubstr("can be stopped")));
  EXPECT_THAT(errors_, HasSubstr("ps 1 drains no more: it may own shards again"));
  EXPECT_THAT(errors_, HasSubstr("owns 3"));
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
