// Moves of shards between real ps while a client pushes: every acknowledged push is there exactly once, also if a ps is
// killed during a move.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "common/wire/shard_map.h"
#include "gtest/gtest.h"
#include "tests/cluster/moves_fixture.h"

namespace lodestone {
namespace {

class MovesTest : public MovesFixture {
 protected:
  void Start(uint32_t servers, std::vector<std::string> sets = {}) {
    MovesFixture::Start(servers, std::move(sets), /*replicas=*/1);
  }
};

TEST_F(MovesTest, AServerIsDrainedAndFilledAgainWhilePushesGoOn) {
  ASSERT_NO_FATAL_FAILURE(Start(/*servers=*/3));
  ASSERT_TRUE(AwaitPushes(100));
  const grpc::Status drained = Drain(1);
  ASSERT_TRUE(drained.ok()) << drained.error_message();
  EXPECT_TRUE(Await([this] { return OwnedBy(1) == 0 && OwnedBy(0) + OwnedBy(2) == kShards; }));
  std::printf("the longest pause between two acknowledgements: %lld ms\n", static_cast<long long>(pause_ms_max()));
  ASSERT_TRUE(AwaitPushes(100));
  // One that owns nothing can go, and nobody waits.
  cluster_->Kill(1);
  ASSERT_TRUE(AwaitPushes(100));
  ASSERT_TRUE(cluster_->Start(1).ok());
  ASSERT_TRUE(Await([this] { return cluster_->Serves(1); }));
  ASSERT_TRUE(Drain(1, /*undo=*/true).ok());
  const grpc::Status leveled = Level();
  ASSERT_TRUE(leveled.ok()) << leveled.error_message();
  EXPECT_TRUE(Await([this] { return OwnedBy(1) == kShards / 3 && NothingIsToMove(); }));
  ExpectExact();
  // What moved comes back from the disks of the ps that it moved to.
  for (const uint32_t server : {0u, 1u, 2u}) cluster_->Kill(server);
  for (const uint32_t server : {0u, 1u, 2u}) ASSERT_TRUE(cluster_->Start(server).ok());
  ExpectSums();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(MovesTest, WithoutDisksShardsMoveLikewise) {
  ASSERT_NO_FATAL_FAILURE(
      Start(/*servers=*/2, {"cluster.durability=memory", "server.data_dir=", "checkpoint.every_ms=0"}));
  ASSERT_TRUE(AwaitPushes(50));
  for (const uint32_t server : {1u, 0u, 1u}) {
    ASSERT_TRUE(Drain(server).ok());
    ASSERT_TRUE(Await([&] { return OwnedBy(server) == 0; }));
    ASSERT_TRUE(AwaitPushes(50));
    ASSERT_TRUE(Drain(server, /*undo=*/true).ok());
  }
  ExpectExact();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(MovesTest, WhatCannotMoveIsRefusedWithTheReason) {
  ASSERT_NO_FATAL_FAILURE(Start(/*servers=*/2));
  EXPECT_EQ(Move({3}, 7).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Move({kShards}, 1).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  ASSERT_TRUE(Drain(1).ok());
  EXPECT_EQ(Move({3}, 1).error_code(), grpc::StatusCode::FAILED_PRECONDITION) << "it drains";
  EXPECT_EQ(Drain(0).error_code(), grpc::StatusCode::FAILED_PRECONDITION) << "none could take its shards";
  cluster_->Kill(1);
  ASSERT_TRUE(Await([this] { return !StatusOf(0).cluster().servers(1).alive(); }));
  EXPECT_EQ(Move({3}, 1).error_code(), grpc::StatusCode::FAILED_PRECONDITION) << "it is away";
  ASSERT_TRUE(cluster_->Start(1).ok());
  ExpectExact();
}

// What `psctl add` asks for: a place is kept for a machine that is not there yet.
TEST_F(MovesTest, ADrainedPlaceIsTakenByAPsWithAnEmptyDiskWhilePushesGoOn) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster(/*servers=*/3, {"coordinator.lease_ms=2000"}, /*own_disks=*/true, /*replicas=*/1));
  ASSERT_TRUE(Await([this] { return StatusOf(0).cluster().route_epoch() > 0; }));
  ASSERT_TRUE(Drain(2).ok());
  ASSERT_TRUE(Await([this] { return OwnedBy(2) == 0 && NothingIsToMove(); }));
  cluster_->Kill(2);
  ASSERT_TRUE(cluster_->DeleteDisk(2).ok());
  ASSERT_TRUE(Await([this] { return !StatusOf(0).cluster().servers(2).alive(); }));
  ASSERT_NO_FATAL_FAILURE(StartPushing()) << "a client needs only those that own shards";
  ASSERT_TRUE(AwaitPushes(100));
  // The others may be started again meanwhile.
  cluster_->Kill(0);
  ASSERT_TRUE(cluster_->Start(0).ok());
  ASSERT_TRUE(Await([this] { return cluster_->Serves(0); }));
  ASSERT_TRUE(AwaitPushes(100));
  ASSERT_TRUE(cluster_->MoveAddress(2).ok());
  ASSERT_TRUE(cluster_->Start(2).ok());
  ASSERT_TRUE(Await([this] { return cluster_->Serves(2); }));
  EXPECT_EQ(OwnedBy(2), 0) << "it drains still";
  ASSERT_TRUE(Drain(2, /*undo=*/true).ok());
  ASSERT_TRUE(Level().ok());
  EXPECT_TRUE(Await([this] { return OwnedBy(2) == kShards / 3 && NothingIsToMove(); }));
  ASSERT_TRUE(AwaitPushes(100));
  ExpectExact();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(MovesTest, AClusterGrowsByAPlaceThatWasKeptWhilePushesGoOn) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*servers=*/4, {"coordinator.lease_ms=2000", "cluster.servers_at_start=2"},
                                       /*own_disks=*/true, /*replicas=*/1));
  ASSERT_NO_FATAL_FAILURE(StartPushing());
  ASSERT_TRUE(AwaitPushes(100)) << "nobody waits for ps 2 and 3";
  EXPECT_EQ(OwnedBy(0) + OwnedBy(1), kShards);
  EXPECT_EQ(StatusOf(0).cluster().places_kept(), 2);
  // The coordinator may be started again meanwhile.
  cluster_->Kill(0);
  ASSERT_TRUE(cluster_->Start(0).ok());
  ASSERT_TRUE(Await([this] { return cluster_->Serves(0); }));
  ASSERT_TRUE(AwaitPushes(100));
  ASSERT_TRUE(cluster_->Start(3).ok());
  ASSERT_TRUE(Await([this] { return cluster_->Serves(3); }));
  EXPECT_EQ(OwnedBy(3), 0) << "nobody has let it";
  EXPECT_EQ(StatusOf(0).cluster().places_kept(), 1);
  ASSERT_TRUE(Drain(3, /*undo=*/true).ok());
  ASSERT_TRUE(Level().ok());
  EXPECT_TRUE(Await([this] { return OwnedBy(3) >= kShards / 3 && NothingIsToMove(); }));
  ASSERT_TRUE(AwaitPushes(100));
  ExpectExact();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

// What was written of a shard before it moved lies in the same folder, by a ps that went back to checkpoints more
// often.
TEST_F(MovesTest, AShardThatMovedToAPsThatCameAfterTheOthersHadGoneBackComesBackWhole) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster(/*servers=*/3,
                   {"coordinator.lease_ms=2000", "cluster.servers_at_start=2", "checkpoint.every_ms=500",
                    absl::StrCat("checkpoint.dir=", getenv("TEST_TMPDIR"), "/gone_back")},
                   /*own_disks=*/true, /*replicas=*/1));
  ASSERT_NO_FATAL_FAILURE(Connect({DenseOnes(), RowOnes()}));
  for (const char* const name : {"first", "second"}) {
    for (uint32_t server = 0; server < 2; ++server) ASSERT_TRUE(WriteCheckpoint(server, name).ok());
  }
  client_.reset();
  for (const char* const name : {"first", "second"}) {
    for (uint32_t server = 0; server < 2; ++server) cluster_->Kill(server);
    cluster_->AddSet(absl::StrCat("checkpoint.load=", name));
    for (uint32_t server = 0; server < 2; ++server) ASSERT_TRUE(cluster_->Start(server).ok());
    ASSERT_TRUE(Await([this] { return cluster_->Serves(0) && cluster_->Serves(1); }));
  }
  ASSERT_NO_FATAL_FAILURE(StartPushing());
  ASSERT_TRUE(AwaitPushes(100));
  ASSERT_TRUE(cluster_->Start(2).ok());
  ASSERT_TRUE(Await([this] { return cluster_->Serves(2); }));
  ASSERT_TRUE(Drain(2, /*undo=*/true).ok());
  ASSERT_TRUE(Level().ok());
  ASSERT_TRUE(Await([this] { return OwnedBy(2) >= kShards / 3 && NothingIsToMove(); }));
  ASSERT_TRUE(AwaitPushes(100));
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
  for (uint32_t server = 0; server < 3; ++server) cluster_->Kill(server);
  for (uint32_t server = 0; server < 3; ++server) ASSERT_TRUE(cluster_->Start(server).ok());
  ASSERT_TRUE(AwaitPushes(100));
  ExpectExact();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(MovesTest, AClusterOfTwoCopiesThatHasGoneBackLosesNothingAfterThat) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*servers=*/2,
                                       {"coordinator.lease_ms=2000", "checkpoint.every_ms=500",
                                        absl::StrCat("checkpoint.dir=", getenv("TEST_TMPDIR"), "/all_gone_back")},
                                       /*own_disks=*/true, /*replicas=*/2));
  const auto in_sync = [this] { return StatusOf(0).cluster().shards_in_sync() == kShards; };
  const auto restart_all = [this] {
    for (uint32_t server = 0; server < 2; ++server) cluster_->Kill(server);
    for (uint32_t server = 0; server < 2; ++server) ASSERT_TRUE(cluster_->Start(server).ok());
    ASSERT_TRUE(Await([this] { return cluster_->Serves(0) && cluster_->Serves(1); }));
  };
  ASSERT_NO_FATAL_FAILURE(Connect({DenseOnes(), RowOnes()}));
  ASSERT_TRUE(Await(in_sync));
  for (uint32_t server = 0; server < 2; ++server) ASSERT_TRUE(WriteCheckpoint(server, "empty").ok());
  client_.reset();
  cluster_->AddSet("checkpoint.load=empty");
  ASSERT_NO_FATAL_FAILURE(restart_all());
  ASSERT_NO_FATAL_FAILURE(StartPushing());
  ASSERT_TRUE(AwaitPushes(100));
  ASSERT_TRUE(Await(in_sync));
  ASSERT_NO_FATAL_FAILURE(restart_all());
  ASSERT_TRUE(AwaitPushes(100));
  ASSERT_TRUE(Await(in_sync));
  cluster_->Kill(1);
  ASSERT_TRUE(AwaitPushes(100)) << "ps 0 has copies of all";
  ASSERT_TRUE(cluster_->Start(1).ok());
  ASSERT_TRUE(Await(in_sync));
  ExpectExact();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(MovesTest, WhatAPsThatHasGoneBackAloneTakesOverComesBackWhole) {
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*servers=*/2, {"coordinator.lease_ms=2000", "checkpoint.every_ms=500"},
                                       /*own_disks=*/true, /*replicas=*/2));
  ASSERT_NO_FATAL_FAILURE(Connect({DenseOnes(), RowOnes()}));
  ASSERT_TRUE(Await([this] { return StatusOf(0).cluster().shards_in_sync() == kShards; }));
  for (uint32_t server = 0; server < 2; ++server) ASSERT_TRUE(WriteCheckpoint(server, "empty").ok());
  client_.reset();
  cluster_->Kill(1);
  cluster_->AddSet("checkpoint.load=empty");
  ASSERT_TRUE(cluster_->Start(1).ok());
  ASSERT_TRUE(Await([this] { return cluster_->Serves(1); }));
  ASSERT_NO_FATAL_FAILURE(StartPushing());
  ASSERT_TRUE(AwaitPushes(100));
  ASSERT_TRUE(Await([this] { return StatusOf(0).cluster().shards_in_sync() == kShards; }));
  std::vector<uint32_t> all(kShards);
  std::iota(all.begin(), all.end(), 0);
  ASSERT_TRUE(Move(all, 1).ok());
  ASSERT_TRUE(Await([this] { return OwnedBy(1) == kShards && NothingIsToMove(); }));
  ASSERT_TRUE(AwaitPushes(100));
  cluster_->Kill(1);
  ASSERT_TRUE(cluster_->Start(1).ok());
  ASSERT_TRUE(Await([this] { return cluster_->Serves(1); }));
  ASSERT_TRUE(AwaitPushes(100));
  ExpectExact();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

TEST_F(MovesTest, WithRebalanceAutoAServerThatMayOwnShardsAgainGetsItsPartByItself) {
  ASSERT_NO_FATAL_FAILURE(
      Start(/*servers=*/3, {"coordinator.rebalance=auto", "coordinator.rebalance_rule.sustained_ms=1000",
                            "coordinator.rebalance_rule.shard_rest_ms=1000", "coordinator.rebalance_rule.bytes_min=1",
                            "coordinator.rebalance_rule.traffic_bytes_per_second_min=1000000000000"}));
  ASSERT_TRUE(AwaitPushes(100));
  ASSERT_TRUE(Drain(1).ok());
  ASSERT_TRUE(Await([this] { return OwnedBy(1) == 0; }));
  ASSERT_TRUE(Drain(1, /*undo=*/true).ok());
  // Bytes are compared, and those of all shards are alike.
  EXPECT_TRUE(Await([this] { return OwnedBy(1) >= kShards / 3 - 1 && NothingIsToMove(); }))
      << StatusOf(0).cluster().DebugString();
  v1::EventsResponse events;
  ASSERT_TRUE(Ask(&v1::Admin::Stub::Events, v1::EventsRequest(), &events).ok());
  const auto is_reason = [](const v1::Event& event) {
    return event.kind() == "rebalanced" && absl::StrContains(event.text(), "to ps 1: ps ") &&
           absl::StrContains(event.text(), "times the mean bytes");
  };
  EXPECT_TRUE(std::any_of(events.events().begin(), events.events().end(), is_reason)) << events.DebugString();
  EXPECT_NE(StatusOf(0).cluster().rebalance(), "");
  ExpectExact();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

// A client that pushes rows of one shard as fast as it can.
class HotShardTest : public MovesFixture {
 protected:
  static constexpr ShardId kHot = 5;
  static constexpr size_t kHotKeys = 16;
  static constexpr size_t kOutstanding = 512;
  static constexpr uint64_t kSumMax = 1 << 24;  // Of a row: floats are exact so far.

  void TearDown() override { EndPushing(); }

  void StartPushing() {
    ASSERT_NO_FATAL_FAILURE(Connect({RowOnes()}));
    client_->SetPushesInFlightMax(kOutstanding);
    for (Key key = 0; keys_.size() < kHotKeys; ++key) {
      if (ShardOfKey(key, kShards) == kHot) keys_.push_back(key);
    }
    pusher_ = std::thread([this] {
      for (Clock clock = 1; !done_ && pushed_ < kHotKeys * kSumMax; ++clock) {
        const float one = 1;
        const worker::RowGradients row{&tables_[0], {&keys_[pushed_ % kHotKeys], 1}, &one};
        const absl::Status sent = client_->Push(clock, {}, {&row, 1}, {}, [this](const worker::PushResult& result) {
          EXPECT_TRUE(result.status.ok()) << result.status;
          const int64_t now_ms = time_.NowMs();
          const int64_t before_ms = acknowledged_ms_.exchange(now_ms);
          if (before_ms > 0) pause_ms_max_ = std::max(pause_ms_max_.load(), now_ms - before_ms);
          ++acknowledged_;
        });
        EXPECT_TRUE(sent.ok()) << sent;
        if (!sent.ok()) break;
        ++pushed_;
      }
      const absl::Status flushed = client_->Flush();
      EXPECT_TRUE(flushed.ok()) << flushed;
      ended_ = true;
    });
  }
  void EndPushing() {
    done_ = true;
    if (!pusher_.joinable()) return;
    EXPECT_TRUE(Await([this] { return ended_.load(); }));
    pusher_.join();
  }
  bool AwaitAcknowledged(uint64_t more) {
    const uint64_t until = acknowledged_ + more;
    return Await([&] { return acknowledged_ >= until; });
  }
  void ExpectExact() {
    ASSERT_NO_FATAL_FAILURE(EndPushing());
    EXPECT_EQ(acknowledged_, pushed_);
    std::vector<float> sums(kHotKeys);
    Run([&] {
      const absl::Status pulled = client_->PullNow({}, {{&tables_[0], keys_, sums.data()}}).status();
      EXPECT_TRUE(pulled.ok()) << pulled;
    });
    for (size_t i = 0; i < kHotKeys; ++i) {
      EXPECT_EQ(sums[i], static_cast<float>(pushed_ / kHotKeys + (i < pushed_ % kHotKeys))) << "row " << i;
    }
  }

  std::vector<Key> keys_;  // Of the shard.
  std::atomic<bool> done_{false}, ended_{false};
  std::atomic<uint64_t> pushed_{0}, acknowledged_{0};
  std::atomic<int64_t> acknowledged_ms_{0}, pause_ms_max_{0};  // The last time; the longest time between two.
  const SteadyTime time_{};
  std::thread pusher_;
};

TEST_F(HotShardTest, MovesTenTimesWhileOneClientPushesIntoItAllItCan) {
  constexpr int kMoves = 10;
  ASSERT_NO_FATAL_FAILURE(StartCluster(/*servers=*/2, {}, /*own_disks=*/false, /*replicas=*/1));
  ASSERT_NO_FATAL_FAILURE(StartPushing());
  ASSERT_TRUE(AwaitAcknowledged(10'000));
  const uint64_t before = acknowledged_;
  const int64_t began_ms = time_.NowMs();
  int64_t longest_ms = 0;
  for (int moves = 0; moves < kMoves; ++moves) {
    const auto owners = Owners();
    ASSERT_TRUE(owners.has_value());
    const uint32_t to = 1 - (*owners)[kHot];
    const int64_t asked_ms = time_.NowMs();
    const grpc::Status told = Move({kHot}, to);
    ASSERT_TRUE(told.ok()) << told.error_message();
    ASSERT_TRUE(Await([this] { return NothingIsToMove(); })) << "move " << moves;
    longest_ms = std::max(longest_ms, time_.NowMs() - asked_ms);
    const auto after = Owners();
    ASSERT_TRUE(after.has_value());
    EXPECT_EQ((*after)[kHot], to);
    ASSERT_TRUE(AwaitAcknowledged(10'000)) << "after move " << moves;
  }
  const double seconds = static_cast<double>(time_.NowMs() - began_ms) / 1000;
  std::printf(
      "%d moves in %.1f s, the longest took %lld ms; %.0f acknowledged pushes a second, the longest pause between two "
      "was %lld ms\n",
      kMoves, seconds, static_cast<long long>(longest_ms), static_cast<double>(acknowledged_ - before) / seconds,
      static_cast<long long>(pause_ms_max_.load()));
  ASSERT_NO_FATAL_FAILURE(ExpectExact());
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

// LODESTONE_MOVES=1000 for as many, LODESTONE_MOVE_KILLS=1000 for as many kills of ps.
TEST_F(MovesTest, SourceTargetOrCoordinatorMayDieAtAnyMomentOfAMove) {
  ASSERT_NO_FATAL_FAILURE(Start(/*servers=*/3, {"worker.retry_timeout_ms=120000"}));
  ASSERT_NO_FATAL_FAILURE(MoveAndKill(/*servers=*/3, /*seed=*/20261123));
  ExpectExact();
  EXPECT_TRUE(cluster_->TakeDeaths().empty());
}

}  // namespace
}  // namespace lodestone
