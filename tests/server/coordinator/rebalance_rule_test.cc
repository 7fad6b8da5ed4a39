// The rule of rebalance: auto as a pure function, with loads that are made up: what it moves, that it ends, and that
// nothing goes back and forth.
#include "server/coordinator/rebalance_rule.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lodestone::server {
namespace {

using ::testing::IsEmpty;

constexpr size_t kRuleMovesAtOnce = 8;

// A cluster of which shards are moved as the rule says.
struct RuledCluster {
  RebalanceRule rule{.difference = 0.25, .bytes_min = 1, .traffic_bytes_per_second_min = 1};
  std::vector<MeasuredShard> shards;
  std::vector<bool> may_own;

  explicit RuledCluster(uint32_t servers) : may_own(servers, true) {}
  // `count` shards of an owner.
  void Add(uint32_t owner, size_t count, double bytes, double traffic) {
    for (; count > 0; --count) shards.push_back({static_cast<ShardId>(shards.size()), owner, bytes, traffic, false});
  }
  ServerParts Parts() const { return ServerParts(rule, shards, may_own); }
  std::vector<uint32_t> Owners() const {
    std::vector<uint32_t> owners;
    for (const MeasuredShard& shard : shards) owners.push_back(shard.owner);
    return owners;
  }
  uint32_t OwnedBy(uint32_t server) const {
    return static_cast<uint32_t>(std::count_if(shards.begin(), shards.end(),
                                               [server](const MeasuredShard& shard) { return shard.owner == server; }));
  }
  double TrafficOf(uint32_t server) const {
    double traffic = 0;
    for (const MeasuredShard& shard : shards) traffic += shard.owner == server ? shard.traffic_bytes_per_second : 0;
    return traffic;
  }
  // One batch of moves; how many.
  size_t Step() {
    const std::vector<RebalanceMove> moves = Parts().ChooseMoves(kRuleMovesAtOnce);
    for (const RebalanceMove& move : moves) {
      EXPECT_EQ(shards[move.shard].owner, move.from);
      EXPECT_TRUE(may_own[move.to]);
      shards[move.shard].owner = move.to;
    }
    return moves.size();
  }
  // Until the rule moves nothing more; how many moves it took.
  size_t Run() {
    std::set<std::vector<uint32_t>> arrangements = {Owners()};
    size_t all = 0;
    while (const size_t moved = Step()) {
      all += moved;
      EXPECT_TRUE(arrangements.insert(Owners()).second) << "an arrangement comes twice";
      EXPECT_LE(all, 4 * shards.size()) << "it does not end";
      if (all > 4 * shards.size()) break;
    }
    return all;
  }
};

TEST(RebalanceRule, NothingMovesWhereAllHaveTheirPart) {
  RuledCluster cluster(3);
  for (uint32_t server = 0; server < 3; ++server) cluster.Add(server, 10, 100, 7);
  ASSERT_TRUE(cluster.Parts().Widest().has_value());
  EXPECT_NEAR(cluster.Parts().Widest()->parts(), 0, 1e-9);
  EXPECT_THAT(cluster.Parts().ChooseMoves(kRuleMovesAtOnce), IsEmpty());
}

TEST(RebalanceRule, AServerThatOwnsNothingGetsItsPart) {
  RuledCluster cluster(4);
  for (uint32_t server = 0; server < 3; ++server) cluster.Add(server, 20, 100, 10);
  EXPECT_EQ(cluster.Parts().Widest()->least, 3);
  EXPECT_EQ(cluster.Run(), 15) << "no shard moves twice";
  EXPECT_EQ(cluster.OwnedBy(3), 15);
}

TEST(RebalanceRule, AHotShardStaysAndThoseBesideItLeave) {
  RuledCluster cluster(3);
  cluster.Add(0, 1, 0, 1000);
  for (uint32_t server = 0; server < 3; ++server) cluster.Add(server, 10, 0, 100);
  EXPECT_EQ(cluster.Run(), 6);
  EXPECT_EQ(cluster.shards[0].owner, 0);
  EXPECT_EQ(cluster.TrafficOf(0), 1400);
  EXPECT_EQ(cluster.TrafficOf(1), 1300);
}

TEST(RebalanceRule, AHotShardAloneIsNotMovedRound) {
  RuledCluster cluster(3);
  cluster.Add(0, 1, 0, 1e6);
  cluster.Add(1, 10, 0, 1);
  cluster.Add(2, 10, 0, 1);
  EXPECT_GT(cluster.Parts().Widest()->parts(), 2);
  EXPECT_THAT(cluster.Parts().ChooseMoves(kRuleMovesAtOnce), IsEmpty());
}

TEST(RebalanceRule, OfMovesThatBringAboutAsMuchTheOneToTheFollowerComesFirst) {
  RuledCluster cluster(3);
  cluster.Add(0, 8, 0, 100);
  cluster.Add(1, 1, 0, 110);
  cluster.Add(2, 1, 0, 100);
  EXPECT_EQ(cluster.Parts().ChooseMoves(1)[0].to, 2) << "it has the least";
  for (MeasuredShard& shard : cluster.shards) shard.followers = {shard.owner == 0 ? 1u : 0u};
  EXPECT_EQ(cluster.Parts().ChooseMoves(1)[0].to, 1);
  cluster.Add(1, 4, 0, 100);
  EXPECT_EQ(cluster.Parts().ChooseMoves(1)[0].to, 2) << "that one brings much more";
  cluster.Run();
  EXPECT_GE(cluster.TrafficOf(2), 400);
}

TEST(RebalanceRule, BothMeasuresAreEvened) {
  RuledCluster cluster(2);
  cluster.Add(0, 16, 1000, 1);  // Large and quiet,
  cluster.Add(1, 16, 10, 100);  // small and busy.
  cluster.Run();
  for (const uint32_t server : {0u, 1u}) {
    double bytes = 0;
    for (const MeasuredShard& shard : cluster.shards) bytes += shard.owner == server ? shard.bytes : 0;
    EXPECT_NEAR(bytes, 8080, 0.13 * 8080);
    EXPECT_NEAR(cluster.TrafficOf(server), 808, 0.13 * 808);
  }
}

TEST(RebalanceRule, AMeasureBelowItsMinimumDoesNotCount) {
  RuledCluster cluster(2);
  cluster.Add(0, 10, 0, 99);
  cluster.Add(1, 1, 0, 10);
  cluster.rule.traffic_bytes_per_second_min = 501;  // The mean is 500.
  EXPECT_FALSE(cluster.Parts().Widest().has_value());
  EXPECT_THAT(cluster.Parts().ChooseMoves(kRuleMovesAtOnce), IsEmpty());
  cluster.rule.traffic_bytes_per_second_min = 500;
  EXPECT_STREQ(ServerParts::NameOf(cluster.Parts().Widest()->measure), "traffic");
}

TEST(RebalanceRule, WhatRestsStaysAndWhoMayOwnNothingGetsNothing) {
  RuledCluster cluster(3);
  cluster.Add(0, 12, 1, 100);
  cluster.Add(1, 1, 1, 100);
  cluster.may_own[2] = false;
  for (size_t shard = 0; shard < 10; ++shard) cluster.shards[shard].rests = true;
  EXPECT_EQ(cluster.Run(), 2);
  EXPECT_EQ(cluster.shards[10].owner, 1);
  EXPECT_EQ(cluster.shards[11].owner, 1);
  cluster.may_own = {true, false, false};
  EXPECT_FALSE(cluster.Parts().Widest().has_value()) << "there is nobody to compare with";
}

TEST(RebalanceRule, ShardsOfWhichNothingIsToBeGainedStay) {
  RuledCluster cluster(2);
  cluster.Add(0, 2, 0, 1000);
  cluster.Add(0, 20, 0, 1);
  cluster.Add(1, 1, 0, 10);
  EXPECT_EQ(cluster.Run(), 1) << "one of the two; the 20 are not worth a move";
}

// Whatever the loads: moves end; no arrangement comes twice; and then no shard that is worth a move would bring the ps
// with the most and the one with the least nearer to each other by a quarter of the difference.
TEST(RebalanceRule, ItEndsWhateverTheLoadsAre) {
  const uint64_t seed = 20261126;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const auto draw = [&random](uint32_t from, uint32_t to) {
    return std::uniform_int_distribution<uint32_t>(from, to)(random);
  };
  for (int round = 0; round < 300; ++round) {
    RuledCluster cluster(draw(2, 24));
    const uint32_t owners = draw(1, static_cast<uint32_t>(cluster.may_own.size()));
    const uint32_t shards = draw(1, 200);
    const double skew = draw(0, 30) / 10.0;  // Of a Pareto distribution's tail.
    const bool both = draw(0, 1) == 1;
    cluster.rule.bytes_min = cluster.rule.traffic_bytes_per_second_min = 0;
    const auto load = [&] { return std::pow(std::uniform_real_distribution<double>(1e-3, 1)(random), -skew); };
    for (uint32_t shard = 0; shard < shards; ++shard) cluster.Add(draw(0, owners - 1), 1, both ? load() : 0, load());
    const size_t moves = cluster.Run();
    EXPECT_LE(moves, 2 * shards) << "round " << round;
    if (both) continue;
    std::vector<double> traffic;
    for (uint32_t server = 0; server < cluster.may_own.size(); ++server) traffic.push_back(cluster.TrafficOf(server));
    const auto [least, most] = std::minmax_element(traffic.begin(), traffic.end());
    double total = 0;
    for (const double of_one : traffic) total += of_one;
    const double mean = total / static_cast<double>(traffic.size());
    for (const MeasuredShard& shard : cluster.shards) {
      const double worth = total / shards / 8;
      if (shard.owner != static_cast<uint32_t>(most - traffic.begin()) || shard.traffic_bytes_per_second < worth)
        continue;
      EXPECT_GE(*least + shard.traffic_bytes_per_second, *most - 0.0625 * mean - 1e-6 * mean) << "round " << round;
    }
  }
}

TEST(RebalanceRule, ADifferenceIsFollowedInItsMeasureAndOfItsServer) {
  RuledCluster cluster(3);
  cluster.Add(0, 1, 1000, 6000);
  cluster.Add(1, 1, 1000, 2000);
  cluster.Add(2, 1, 1000, 1000);
  const std::optional<ServerParts::Difference> before = cluster.Parts().Widest();
  ASSERT_TRUE(before.has_value());
  EXPECT_EQ(before->Text(), "ps 0 has 2.00 times the mean traffic, ps 2 0.33");
  cluster.shards[1].traffic_bytes_per_second = 11'000;
  const std::optional<ServerParts::Difference> after = cluster.Parts().Again(*before);
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(after->Text(), "ps 0 has 1.00 times the mean traffic, ps 2 0.17");
  cluster.may_own[0] = false;
  EXPECT_FALSE(cluster.Parts().Again(*before).has_value());
}

// Loads that are measured with an error do not keep shards moving: after the first moves few follow.
TEST(RebalanceRule, NoiseMovesLittle) {
  const uint64_t seed = 4711;
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  RuledCluster cluster(4);
  for (uint32_t shard = 0; shard < 64; ++shard) cluster.Add(shard % 3, 1, 0, 100);
  cluster.Run();
  size_t moves = 0;
  for (int hour = 0; hour < 120; ++hour) {
    for (MeasuredShard& shard : cluster.shards) {
      shard.traffic_bytes_per_second = 100 * std::uniform_real_distribution<double>(0.8, 1.2)(random);
    }
    if (cluster.Parts().Widest()->parts() > cluster.rule.difference) moves += cluster.Step();
  }
  EXPECT_EQ(moves, 0);
}

}  // namespace
}  // namespace lodestone::server
