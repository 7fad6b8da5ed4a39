// What tests of moves in Membership begin with: three servers that own six shards, with followers or without, and the
// ways of planning moves and of carrying them out as owners and followers do.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/time_source.h"
#include "gtest/gtest.h"
#include "server/coordinator/membership.h"
#include "tests/server/coordinator/replicated_members.h"

namespace lodestone::server {

inline constexpr uint32_t kMoveShards = 6;
inline constexpr uint32_t kMoveServers = 3;

// Shard s is server s mod 3's.
class MovingMembers : public ::testing::Test {
 protected:
  using Zones = std::array<std::string, kMoveServers>;  // By server.

  explicit MovingMembers(const RebalanceOptions& rebalance = {}, uint32_t replicas = 1, const Zones& zones = {})
      : rebalance_(rebalance), zones_(zones) {
    members_ = std::make_unique<Membership>(Options(replicas));
    for (uint32_t server = 0; server < kMoveServers; ++server) Join(server);
  }

  Membership::Options Options(uint32_t replicas) const {
    Membership::Options options =
        ReplicatedOptions(kMoveServers, kMoveShards, replicas, kLeaseMs, /*ends_with_server_0=*/false, &time_);
    options.rebalance = rebalance_;
    return options;
  }
  v1::JoinRequest RequestOf(uint32_t server, bool shared = false) {
    v1::JoinRequest request = ServerJoin(server, kMoveShards);
    request.set_zone(zones_[server]);
    request.set_token(10 * (server + 1) + ++joins_);
    request.mutable_data()->set_folder(70 + server);
    request.mutable_data()->set_shared(shared);
    request.mutable_data()->set_served(shared);
    request.mutable_data()->set_knows_learners(knows_learners_);
    return request;
  }
  void Join(uint32_t server, bool shared = false) {
    const auto joined = members_->Join(RequestOf(server, shared));
    ASSERT_TRUE(joined.ok()) << joined.status();
    lives_[server] = joined->incarnation();
  }
  void Beat(uint32_t server, const v1::ServerProgress& progress = {}) {
    v1::HeartbeatRequest request;
    *request.mutable_server() = progress;
    request.set_incarnation(lives_[server]);
    ASSERT_TRUE(members_->Heartbeat(request).ok());
  }
  // The lease of `dead` ends.
  void LetExpire(uint32_t dead) {
    time_.AdvanceMs(1);
    for (uint32_t server = 0; server < kMoveServers; ++server) {
      if (server != dead) Beat(server);
    }
    time_.AdvanceMs(kLeaseMs - 1);
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
  // The owner reports its follower in sync, or that it gives the shard up by a number; whether that was accepted.
  bool ReportInSync(ShardId shard, std::optional<uint64_t> term = std::nullopt, uint64_t gives_up = 0) {
    const uint32_t follower = Followers()[shard];
    return Report(shard, follower == 0 ? 0 : lives_[follower - 1], true, term, gives_up);
  }
  bool Report(ShardId shard, Incarnation follower, bool in_sync, std::optional<uint64_t> term = std::nullopt,
              uint64_t gives_up = 0) {
    v1::ReportSyncRequest request;
    request.set_incarnation(lives_[Owners()[shard]]);
    auto* const report = request.add_reports();
    report->set_shard(shard);
    report->set_follower(follower);
    report->set_in_sync(in_sync);
    report->set_gives_up(gives_up);
    report->set_term(term.value_or(members_->shards().terms()[shard]));
    const auto told = members_->ReportSync(request);
    EXPECT_TRUE(told.ok()) << told.status();
    return told.ok() && told->accepted(0);
  }
  uint64_t Handover(ShardId shard) const { return members_->shards().handovers()[shard]; }
  // The owner gives the shard up, as it is asked to.
  bool GiveUp(ShardId shard) {
    EXPECT_GT(Handover(shard), 0) << "shard " << shard << " is to change hands";
    return ReportInSync(shard, std::nullopt, Handover(shard));
  }
  // The follower gets in sync, and the owner gives the shard up.
  bool MoveOver(ShardId shard) { return ReportInSync(shard) && GiveUp(shard); }
  // All copies that are being made get in sync, and their owners give the shards up, until there are none.
  void FinishMoves() {
    for (uint32_t round = 0; round < kMoveShards && members_->shards().HasFollowers(); ++round) {
      for (ShardId shard = 0; shard < kMoveShards; ++shard) {
        if (Followers()[shard] > 0) ReportInSync(shard);
      }
      for (ShardId shard = 0; shard < kMoveShards; ++shard) {
        if (Handover(shard) > 0) GiveUp(shard);
      }
    }
  }
  const std::vector<uint32_t>& Owners() const { return members_->shards().owners(); }
  const std::vector<uint32_t>& Followers() const { return members_->shards().followers(); }

  const RebalanceOptions rebalance_;
  Zones zones_;  // That servers join with.
  ManualTime time_;
  std::unique_ptr<Membership> members_;
  Incarnation lives_[kMoveServers] = {};
  bool knows_learners_ = true;  // Servers that join.
  uint64_t joins_ = 0;
};

// Shard s is server s mod 3's, and all followers are in sync.
class ReplicatedMovingMembers : public MovingMembers {
 protected:
  explicit ReplicatedMovingMembers(const RebalanceOptions& rebalance = {}, const Zones& zones = {})
      : MovingMembers(rebalance, /*replicas=*/2, zones) {
    SyncFollowers();
  }

  void SyncFollowers() {
    for (ShardId shard = 0; shard < kMoveShards; ++shard) {
      if (Followers()[shard] == 0 || Followers()[shard] == full_ + 1) continue;
      EXPECT_TRUE(ReportInSync(shard)) << shard;
    }
  }
  const std::vector<uint32_t>& Learners() const { return members_->shards().learners(); }
  bool InSync(ShardId shard) const { return members_->shards().in_sync()[shard]; }
  // The server that neither owns nor follows the shard.
  uint32_t Third(ShardId shard) const { return 3 - Owners()[shard] - (Followers()[shard] - 1); }
  bool LearnerHasAll(ShardId shard) { return Report(shard, lives_[Learners()[shard] - 1], true); }
  // All copies that are being made get in sync, and owners give up what they are asked to, until nothing changes.
  void FinishAll() {
    for (uint64_t epoch = 0; epoch != members_->shards().epoch();) {
      epoch = members_->shards().epoch();
      for (ShardId shard = 0; shard < kMoveShards; ++shard) {
        if (Learners()[shard] == 0 || Learners()[shard] == full_ + 1) continue;
        EXPECT_TRUE(LearnerHasAll(shard));
      }
      for (ShardId shard = 0; shard < kMoveShards; ++shard) {
        if (Handover(shard) == 0) continue;
        EXPECT_TRUE(GiveUp(shard));
      }
      SyncFollowers();
    }
  }
  uint32_t HeldBy(uint32_t server) const {
    return static_cast<uint32_t>(std::count(Owners().begin(), Owners().end(), server) +
                                 std::count(Followers().begin(), Followers().end(), server + 1));
  }
  // The disk of a server is full: what it follows lags from now on.
  void FillDisk(uint32_t server) {
    full_ = server;
    for (ShardId shard = 0; shard < kMoveShards; ++shard) {
      if (Followers()[shard] != server + 1) continue;
      EXPECT_TRUE(Report(shard, lives_[server], /*in_sync=*/false));
    }
  }

  uint32_t full_ = kMoveServers;  // That server; none at first.
};

}  // namespace lodestone::server
