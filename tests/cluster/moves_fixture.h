// Real ps whose shards are told to move while a client pushes.
#pragma once

#include <stdlib.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rpc/channel.h"
#include "grpcpp/client_context.h"
#include "gtest/gtest.h"
#include "proto/admin.grpc.pb.h"
#include "tests/cluster/pushing_fixture.h"
#include "tools/psctl/client/admin_client.h"

namespace lodestone {

class MovesFixture : public PushingFixture {
 protected:
  void Start(uint32_t servers, std::vector<std::string> sets, uint32_t replicas, bool own_disks = false) {
    ASSERT_NO_FATAL_FAILURE(StartCluster(servers, std::move(sets), own_disks, replicas));
    ASSERT_NO_FATAL_FAILURE(StartPushing());
  }

  template <typename Request, typename Response>
  grpc::Status Ask(grpc::Status (v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                   const Request& request, Response* response, uint32_t server = 0) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    const auto stub = v1::Admin::NewStub(MakeChannel(absl::StrCat("127.0.0.1:", cluster_->PortOf(server)), 64 << 20));
    return (stub.get()->*method)(&context, request, response);
  }
  // The part of a named checkpoint of one ps.
  grpc::Status WriteCheckpoint(uint32_t server, const std::string& name) {
    v1::CheckpointRequest request;
    request.set_name(name);
    v1::CheckpointResponse response;
    return Ask(&v1::Admin::Stub::Checkpoint, request, &response, server);
  }
  grpc::Status Drain(uint32_t server, bool undo = false) {
    v1::DrainRequest request;
    request.set_server(server);
    request.set_undo(undo);
    v1::DrainResponse response;
    return Ask(&v1::Admin::Stub::Drain, request, &response);
  }
  grpc::Status Level() {
    v1::MoveRequest request;
    request.set_level(true);
    v1::MoveResponse response;
    return Ask(&v1::Admin::Stub::Move, request, &response);
  }
  // `planned`: gets how many of them are to move for it.
  grpc::Status Move(const std::vector<uint32_t>& shards, uint32_t server, uint32_t* planned = nullptr) {
    v1::MoveRequest request;
    request.mutable_shards()->Add(shards.begin(), shards.end());
    request.set_server(server);
    v1::MoveResponse response;
    const grpc::Status status = Ask(&v1::Admin::Stub::Move, request, &response);
    if (planned != nullptr) *planned = response.planned();
    return status;
  }
  // Of ps 0's coordinator: what it knows of a ps.
  v1::MemberStatus MemberOf(uint32_t server) {
    const v1::StatusResponse status = StatusOf(0);
    for (const v1::MemberStatus& member : status.cluster().servers()) {
      if (member.index() == server) return member;
    }
    return {};
  }
  uint32_t OwnedBy(uint32_t server) { return static_cast<uint32_t>(StatusOf(server).server().shards_owned()); }
  // The owner of each shard, as the coordinator knows it; nullopt while it does not answer.
  std::optional<std::vector<uint32_t>> Owners() {
    if (!cluster_->Listens(0)) return std::nullopt;
    const auto owners = psctl::FetchOwners(absl::StrCat("127.0.0.1:", cluster_->PortOf(0)), /*timeout_ms=*/1000);
    if (!owners.ok() || owners->size() != kShards) return std::nullopt;
    return *owners;
  }
  // Also of ps 0, when it has come back.
  bool NothingIsToMove() {
    const v1::StatusResponse status = StatusOf(0);
    return status.has_cluster() && status.cluster().route_epoch() > 0 && status.cluster().moves().empty();
  }
  // Tells random shards to move among so many ps, and kills one of the ps every now and then, until LODESTONE_MOVES or
  // 40 moves were seen, and LODESTONE_MOVE_KILLS kills if that says how many, and nothing is left to move. REQUIRES:
  // worker.retry_timeout_ms is long enough for that.
  void MoveAndKill(uint32_t servers, uint64_t seed) {
    const uint64_t wanted = NumberOf("LODESTONE_MOVES", 40), wanted_kills = NumberOf("LODESTONE_MOVE_KILLS", 0);
    std::printf("seed %llu, %llu moves\n", static_cast<unsigned long long>(seed),
                static_cast<unsigned long long>(wanted));
    std::mt19937_64 random(seed);
    const auto draw = [&random](uint32_t below) {
      return std::uniform_int_distribution<uint32_t>(0, below - 1)(random);
    };
    uint64_t moves = 0, kills = 0, planned = 0;
    ASSERT_TRUE(Await([this] { return (void)MovesSeen(), !owners_.empty(); }));
    while (moves < wanted || kills < wanted_kills) {
      ASSERT_LT(planned, 100 * (wanted + wanted_kills)) << "moves are planned and not seen: " << moves;
      const uint32_t to = draw(servers);
      std::vector<uint32_t> shards;
      for (uint32_t i = 1 + draw(4); i > 0; --i) shards.push_back(draw(kShards));
      uint32_t more = 0;
      if (!Move(shards, to, &more).ok()) {  // The coordinator, or the target, is not back yet.
        cluster_->Pump(5);
        continue;
      }
      for (const uint32_t shard : shards) told_[shard] = to;
      planned += more;
      for (uint32_t i = draw(40); i > 0; --i) cluster_->Pump(5);
      moves += MovesSeen();
      if (draw(2) == 0 || kills * wanted < wanted_kills * moves) {
        const uint32_t victim = draw(servers);
        cluster_->Kill(victim);
        ++kills;
        ASSERT_TRUE(cluster_->Start(victim).ok());
        ASSERT_TRUE(Await([&] { return cluster_->Serves(victim); })) << "ps " << victim;
        moves += MovesSeen(victim);
      }
      if (draw(4) == 0) {
        ASSERT_TRUE(AwaitPushes(1)) << "stuck after " << moves << " moves";
      }
    }
    ASSERT_TRUE(Await([this] { return NothingIsToMove(); })) << StatusOf(0).cluster().DebugString();
    moves += MovesSeen();
    std::printf("%llu moves of shards to another ps were seen, %llu had been planned; %llu kills\n",
                static_cast<unsigned long long>(moves), static_cast<unsigned long long>(planned),
                static_cast<unsigned long long>(kills));
  }

 private:
  static uint64_t NumberOf(const char* variable, uint64_t otherwise) {
    const char* const text = getenv(variable);
    return text != nullptr ? strtoull(text, nullptr, 10) : otherwise;
  }
  // Shards that have come to where they were told to go, from another ps, since the last call. `killed` died since:
  // what was its own may be its followers' for that reason, and does not count.
  uint64_t MovesSeen(std::optional<uint32_t> killed = std::nullopt) {
    const std::optional<std::vector<uint32_t>> owners = Owners();
    if (!owners.has_value()) return 0;
    uint64_t moves = 0;
    for (uint32_t shard = 0; shard < kShards && !owners_.empty(); ++shard) {
      const auto told = told_.find(shard);
      moves += (*owners)[shard] != owners_[shard] && told != told_.end() && (*owners)[shard] == told->second &&
               owners_[shard] != killed;
    }
    owners_ = *owners;
    return moves;
  }

  std::vector<uint32_t> owners_;       // When they were asked for last.
  std::map<uint32_t, uint32_t> told_;  // By shard, the ps that it was told to move to last.
};

}  // namespace lodestone
