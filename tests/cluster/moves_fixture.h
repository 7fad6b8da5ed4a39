// Real ps whose shards are told to move while a client pushes.
#pragma once

#include <stdlib.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
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

namespace lodestone {

class MovesFixture : public PushingFixture {
 protected:
  void Start(uint32_t servers, std::vector<std::string> sets, uint32_t replicas, bool own_disks = false) {
    sets.push_back("coordinator.lease_ms=2000");
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
  grpc::Status Move(const std::vector<uint32_t>& shards, uint32_t server) {
    v1::MoveRequest request;
    request.mutable_shards()->Add(shards.begin(), shards.end());
    request.set_server(server);
    v1::MoveResponse response;
    return Ask(&v1::Admin::Stub::Move, request, &response);
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
  // Also of ps 0, when it has come back.
  bool NothingIsToMove() {
    const v1::StatusResponse status = StatusOf(0);
    return status.has_cluster() && status.cluster().route_epoch() > 0 && status.cluster().moves().empty();
  }
  // Tells random shards to move among so many ps, LODESTONE_MOVES or 40 of them, and kills one of the ps every now and
  // then, until nothing is left to move. REQUIRES: worker.retry_timeout_ms is long enough for that.
  void MoveAndKill(uint32_t servers, uint64_t seed) {
    const char* const wanted = getenv("LODESTONE_MOVES");
    const int moves = wanted != nullptr ? atoi(wanted) : 40;
    std::printf("seed %llu, %d moves\n", static_cast<unsigned long long>(seed), moves);
    std::mt19937_64 random(seed);
    const auto draw = [&random](uint32_t below) {
      return std::uniform_int_distribution<uint32_t>(0, below - 1)(random);
    };
    int kills = 0, planned = 0;
    while (planned < moves) {
      const uint32_t to = draw(servers);
      std::vector<uint32_t> shards;
      for (uint32_t i = 1 + draw(4); i > 0; --i) shards.push_back(draw(kShards));
      if (!Move(shards, to).ok()) {  // The coordinator, or the target, is not back yet.
        cluster_->Pump(5);
        continue;
      }
      planned += static_cast<int>(shards.size());
      for (uint32_t i = draw(40); i > 0; --i) cluster_->Pump(5);
      if (draw(2) == 0) {
        const uint32_t victim = draw(servers);
        cluster_->Kill(victim);
        ++kills;
        ASSERT_TRUE(cluster_->Start(victim).ok());
        ASSERT_TRUE(Await([&] { return cluster_->Serves(victim); })) << "ps " << victim;
      }
      if (draw(4) == 0) {
        ASSERT_TRUE(AwaitPushes(1)) << "stuck after " << planned << " moves";
      }
    }
    ASSERT_TRUE(Await([this] { return NothingIsToMove(); })) << StatusOf(0).cluster().DebugString();
    std::printf("%d shards were told to move, %d kills\n", planned, kills);
  }
};

}  // namespace lodestone
