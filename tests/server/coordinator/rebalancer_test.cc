// rebalance: auto in Membership: when moves begin, what they wait for, and how seldom a shard moves, with loads that
// are made up.
#include "server/coordinator/rebalancer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/coordinator/moving_members.h"

namespace lodestone::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr int64_t kSustainedMs = 5000;
constexpr int64_t kRestMs = 60'000;

RebalanceOptions AutomaticOptions() {
  return {.automatic = true,
          .rule = {.difference = 0.25, .bytes_min = 1000, .traffic_bytes_per_second_min = 1000},
          .sustained_ms = kSustainedMs,
          .shard_rest_ms = kRestMs};
}

class RebalancerTest : public MovingMembers {
 protected:
  explicit RebalancerTest(const RebalanceOptions& options = AutomaticOptions()) : MovingMembers(options) {
    traffic_.fill(1000);
  }

  // What an owner has measured of its shards.
  v1::ServerProgress Progress(uint32_t server) const {
    v1::ServerProgress progress;
    for (ShardId shard = 0; shard < kMoveShards; ++shard) {
      if (Owners()[shard] != server || unmeasured_.contains(shard)) continue;
      v1::ShardLoad* const load = progress.add_shards();
      load->set_shard(shard);
      load->set_push_bytes_per_second(traffic_[shard]);
      load->set_bytes(bytes_[shard]);
    }
    return progress;
  }
  // Time goes by, all servers are heard of, and what is planned is done at once.
  void Pass(int64_t ms) {
    for (; ms > 0; ms -= kStepMs) {
      time_.AdvanceMs(kStepMs);
      for (uint32_t server = 0; server < kMoveServers; ++server) {
        const std::vector<uint32_t> before = Owners();
        if (!away_.contains(server)) Beat(server, Progress(server));
        if (moves_are_done_) FinishMoves();
        for (ShardId shard = 0; shard < kMoveShards; ++shard) {
          if (Owners()[shard] != before[shard]) moved_ms_[shard].push_back(time_.NowMs());
        }
      }
    }
  }
  size_t Moves() const {
    size_t all = 0;
    for (const auto& [shard, times] : moved_ms_) all += times.size();
    return all;
  }
  std::set<uint32_t> PlannedShards() const {
    const v1::ClusterStatus status = members_->Status();
    std::set<uint32_t> shards;
    for (const v1::ShardMove& move : status.moves()) shards.insert(move.shard());
    return shards;
  }
  std::string Does() const { return members_->Status().rebalance(); }
  std::vector<std::string> Reasons() {
    std::vector<std::string> reasons;
    for (const v1::Event& event : members_->TakeEvents()) {
      if (event.kind() == "rebalanced") reasons.push_back(event.who() + " " + event.text());
    }
    return reasons;
  }

  static constexpr int64_t kStepMs = 500;

  std::array<float, kMoveShards> traffic_;
  std::array<uint64_t, kMoveShards> bytes_ = {};
  std::set<ShardId> unmeasured_;
  std::set<uint32_t> away_;
  bool moves_are_done_ = true;
  std::map<ShardId, std::vector<int64_t>> moved_ms_;
};

class ManualRebalancerTest : public RebalancerTest {
 protected:
  ManualRebalancerTest() : RebalancerTest(RebalanceOptions()) {}
};

TEST_F(RebalancerTest, MovesBeginWhenPartsHaveBeenTooFarApartForAWhile) {
  traffic_ = {5000, 500, 500, 5000, 500, 500};  // Shards 0 and 3 are server 0's.
  Pass(kSustainedMs);
  EXPECT_EQ(Moves(), 0);
  EXPECT_THAT(Does(), HasSubstr("ps 0 has 2.50 times the mean traffic, ps 1 0.25; moves begin in"));
  Pass(2 * kStepMs);
  EXPECT_THAT(Owners(), ElementsAre(1, 2, 2, 0, 2, 2)) << "one for each that is hot, one for the others";
  EXPECT_THAT(Reasons(),
              ElementsAre("ps 0 is to give shard 0 to ps 1: ps 0 has 2.50 times the mean traffic, ps 1 0.25",
                          "ps 1 is to give shards 1, 4 to ps 2: ps 0 has 2.50 times the mean traffic, ps 1 0.25"));
  Pass(3600'000);
  EXPECT_EQ(Moves(), 3) << "nothing more is to be gained";
  EXPECT_THAT(Does(), HasSubstr("no shard that may move now would bring them nearer"));
}

TEST_F(RebalancerTest, ADifferenceThatPassesMovesNothing) {
  for (int i = 0; i < 20; ++i) {
    traffic_ = {5000, 500, 500, 5000, 500, 500};
    Pass(kSustainedMs - kStepMs);
    traffic_.fill(1000);
    Pass(2 * kStepMs);  // Each judgement is of what all have reported before.
    EXPECT_THAT(Does(), StartsWith("balanced: "));
  }
  EXPECT_EQ(Moves(), 0);
}

TEST_F(RebalancerTest, WhatIsHotNowHereNowThereMovesNothing) {
  for (int i = 0; i < 20; ++i) {
    for (const ShardId hot : {2u, 1u, 0u}) {  // And the server's other shard.
      traffic_.fill(500);
      traffic_[hot] = traffic_[hot + kMoveServers] = 5000;
      Pass(kSustainedMs - 4 * kStepMs);
    }
  }
  EXPECT_EQ(Moves(), 0);
}

TEST_F(RebalancerTest, OfTwoThatTakeAboutAsMuchItIsTheSameWhichOneTakesMore) {
  for (int64_t ms = 0; ms <= kSustainedMs; ms += 2 * kStepMs) {
    traffic_ = {5000, 4950, 500, 5000, 4950, 500};
    Pass(kStepMs);
    traffic_ = {4900, 4950, 500, 4900, 4950, 500};
    Pass(kStepMs);
  }
  EXPECT_GT(Moves(), 0);
}

// By bytes alone shard 3 would leave server 0; but it takes more of the traffic than server 0 has too little.
TEST_F(RebalancerTest, WhatAPauseOfTrainingWouldMoveStaysUntilThePauseIsLong) {
  bytes_ = {3000, 500, 500, 1000, 500, 500};
  traffic_ = {200, 1150, 1150, 1200, 1150, 1150};
  Pass(4 * kSustainedMs);
  EXPECT_EQ(Moves(), 0);
  EXPECT_THAT(Does(), HasSubstr("no shard that may move now would bring them nearer"));
  traffic_.fill(0);
  Pass(kRestMs);
  EXPECT_EQ(Moves(), 0);
  EXPECT_THAT(Does(), StartsWith("waits: the mean traffic is below its minimum, and was not "));
  Pass(kSustainedMs + 4 * kStepMs);
  EXPECT_GT(Moves(), 0);
}

TEST_F(RebalancerTest, AServerThatMayOwnShardsAgainGetsItsPart) {
  ASSERT_TRUE(Drain(2).ok());
  FinishMoves();
  Pass(kRestMs);
  EXPECT_EQ(std::count(Owners().begin(), Owners().end(), 2u), 0) << "it drains";
  EXPECT_THAT(Does(), StartsWith("balanced: "));
  ASSERT_TRUE(Drain(2, /*undo=*/true).ok());
  Pass(kSustainedMs + 2 * kStepMs);
  for (uint32_t server = 0; server < kMoveServers; ++server) {
    EXPECT_EQ(std::count(Owners().begin(), Owners().end(), server), 2) << "ps " << server;
  }
  EXPECT_EQ(Moves(), 2);
}

TEST_F(RebalancerTest, AShardThatAnOperatorHasMovedRests) {
  Pass(kStepMs);
  ASSERT_TRUE(Move({1, 2, 4, 5}, 0).ok());
  FinishMoves();
  Pass(kRestMs - kStepMs);
  EXPECT_EQ(Moves(), 2) << "shards 0 and 3 were there before";
  EXPECT_NE(Owners()[0], 0);
  EXPECT_NE(Owners()[3], 0);
  Pass(kSustainedMs + kRestMs);
  EXPECT_EQ(Moves(), 4);
  EXPECT_EQ(std::count(Owners().begin(), Owners().end(), 0u), 2);
}

TEST_F(RebalancerTest, NothingIsPlannedBesideAnotherPlan) {
  traffic_ = {5000, 500, 500, 5000, 500, 500};
  moves_are_done_ = false;
  ASSERT_TRUE(Move({1}, 2).ok());
  Pass(10 * kSustainedMs);
  EXPECT_EQ(PlannedShards().size(), 1);
  EXPECT_EQ(Does(), "waits until the moves that are planned are done");
  FinishMoves();
  Pass(kSustainedMs + 2 * kStepMs);
  const size_t planned = PlannedShards().size();
  EXPECT_GT(planned, 0);
  Pass(10 * kSustainedMs);
  EXPECT_EQ(PlannedShards().size(), planned) << "until those are done";
  EXPECT_THAT(Does(), StartsWith("moves shards: ps 0 has"));
}

TEST_F(RebalancerTest, WhatIsCancelledIsNotPlannedAgainAtOnce) {
  traffic_ = {3000, 100, 100, 3000, 100, 100};
  moves_are_done_ = false;
  Pass(kSustainedMs + 2 * kStepMs);
  ASSERT_THAT(PlannedShards(), ElementsAre(0));
  ASSERT_TRUE(Move({}, 0, /*cancel=*/true).ok());
  Pass(kRestMs - kSustainedMs);
  EXPECT_THAT(PlannedShards(), ElementsAre(3)) << "shard 0 rests";
}

TEST_F(RebalancerTest, WhenMovesAreCancelledOthersWaitAsIfNothingHadBegun) {
  traffic_ = {5000, 500, 500, 5000, 500, 500};
  moves_are_done_ = false;
  Pass(kSustainedMs + 2 * kStepMs);
  ASSERT_THAT(PlannedShards(), ElementsAre(0, 1, 4));
  ASSERT_TRUE(Move({}, 0, /*cancel=*/true).ok());
  Pass(kSustainedMs);
  EXPECT_THAT(PlannedShards(), IsEmpty());
  EXPECT_THAT(Does(), HasSubstr("; moves begin in"));
  Pass(2 * kStepMs);
  EXPECT_THAT(PlannedShards(), ElementsAre(3)) << "the others rest";
}

TEST_F(RebalancerTest, WhileAServerIsAwayNothingIsJudged) {
  traffic_ = {5000, 500, 500, 5000, 500, 500};
  away_ = {1};
  Pass(2 * kLeaseMs);
  members_->TakeExpired();
  Pass(10 * kSustainedMs);
  EXPECT_EQ(Moves(), 0);
  EXPECT_EQ(Does(), "waits for ps 1, which is away");
  away_.clear();
  Join(1);
  Pass(kSustainedMs);
  EXPECT_EQ(Moves(), 0) << "sustained_ms counts from the return of the ps";
  Pass(2 * kStepMs);
  EXPECT_GT(Moves(), 0);
}

TEST_F(RebalancerTest, SaysWhichServerReportsNoShards) {
  traffic_ = {5000, 500, 500, 5000, 500, 500};
  unmeasured_ = {1, 4};
  Pass(10 * kSustainedMs);
  EXPECT_EQ(Moves(), 0);
  EXPECT_THAT(Does(), StartsWith("ps 1 does not report its shards: "));
  EXPECT_THAT(Does(), HasSubstr("more than a quarter of its server.message_max_bytes"));
}

TEST_F(RebalancerTest, NothingIsJudgedBeforeAllShardsAreMeasured) {
  traffic_ = {5000, 500, 500, 5000, 500, 500};
  unmeasured_ = {4};
  Pass(10 * kSustainedMs);
  EXPECT_EQ(Moves(), 0);
  EXPECT_EQ(Does(), "waits until ps 1 has measured its shards");
  unmeasured_.clear();
  Pass(kSustainedMs + 2 * kStepMs);
  EXPECT_GT(Moves(), 0);
}

// A shard that takes nine tenths of all that comes, with an error of measurement, for hours.
TEST_F(RebalancerTest, AHotShardIsNotMovedRound) {
  const uint64_t seed = 20261126;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int minute = 0; minute < 6 * 60; ++minute) {
    for (ShardId shard = 0; shard < kMoveShards; ++shard) {
      traffic_[shard] = (shard == 3 ? 50'000.f : 1000.f) * std::uniform_real_distribution<float>(0.9, 1.1)(random);
    }
    Pass(60'000);
  }
  EXPECT_EQ(moved_ms_.count(3), 0);
  EXPECT_LE(Moves(), 2) << "shard 0 may leave it";
}

// Where loads change faster than shards move, nothing helps; but a shard moves no more often than it may.
TEST_F(RebalancerTest, AShardMovesNoMoreOftenThanItMayHoweverLoadsChange) {
  const uint64_t seed = 4711;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 500; ++i) {
    for (float& traffic : traffic_) traffic = std::uniform_int_distribution<int>(0, 3)(random) == 0 ? 10'000 : 500;
    Pass(std::uniform_int_distribution<int64_t>(1, 40)(random) * kStepMs);
  }
  EXPECT_GT(Moves(), 10);
  for (const auto& [shard, times] : moved_ms_) {
    for (size_t i = 1; i < times.size(); ++i) EXPECT_GE(times[i] - times[i - 1], kRestMs) << "shard " << shard;
  }
}

TEST_F(RebalancerTest, AnotherLifeOfTheCoordinatorGoesOnWithThePlanAndJudgesAnew) {
  traffic_ = {5000, 500, 500, 5000, 500, 500};
  moves_are_done_ = false;
  Pass(kSustainedMs + 2 * kStepMs);
  const size_t planned = PlannedShards().size();
  ASSERT_GT(planned, 0);
  const v1::CoordinatorState state = members_->SaveState();
  members_ = std::make_unique<Membership>(Options(1));
  ASSERT_TRUE(members_->Restore(state).ok());
  Pass(kStepMs);
  EXPECT_EQ(PlannedShards().size(), planned);
  moves_are_done_ = true;
  Pass(kSustainedMs);
  EXPECT_THAT(PlannedShards(), IsEmpty());
}

TEST_F(RebalancerTest, IdleOnesMoveNothing) {
  traffic_ = {20, 0, 0, 20, 0, 0};
  Pass(10 * kSustainedMs);
  EXPECT_EQ(Moves(), 0);
  EXPECT_THAT(Does(), StartsWith("compares nothing: "));
}

TEST_F(ManualRebalancerTest, NothingMovesByItself) {
  traffic_ = {5e6, 500, 500, 5e6, 500, 500};
  Pass(3600'000);
  EXPECT_EQ(Moves(), 0);
  EXPECT_EQ(Does(), "");
}

}  // namespace
}  // namespace lodestone::server
