// A follower's end of a stream, by hand.
//
// Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "common/rpc/channel.h"
#include "common/rpc/grpc_status.h"
#include "grpcpp/client_context.h"
#include "proto/config.pb.h"
#include "proto/replication.grpc.pb.h"

namespace lodestone::server {

class RawFollower {
 public:
  explicit RawFollower(const std::string& address)
      : stub_(v1::Replication::NewStub(MakeChannel(address, 64 << 20))), stream_(stub_->Follow(&context_)) {}
  ~RawFollower() {
    if (stream_ != nullptr) Leave().IgnoreError();
  }

  // What a follower of the ps 0 in the fixture's cluster says first.
  static v1::FollowStart StartOf(Incarnation incarnation, uint32_t shards,
                                 const std::vector<std::pair<ShardId, Version>>& positions) {
    v1::FollowStart start;
    start.set_shards(shards);
    start.set_seed(v1::Config().cluster().seed());
    start.set_cluster(v1::Config().cluster().name());
    start.set_server(1);
    start.set_incarnation(incarnation);
    start.set_owner(0);
    for (const auto& [shard, version] : positions) {
      start.add_follows()->set_shard(shard);
      start.mutable_follows(start.follows_size() - 1)->set_version(version);
    }
    return start;
  }
  void Start(const v1::FollowStart& start) {
    v1::FollowRequest request;
    *request.mutable_start() = start;
    stream_->Write(request);
  }
  void Ack(ShardId shard, Version version) {
    v1::FollowRequest request;
    request.mutable_acks()->add_applied()->set_shard(shard);
    request.mutable_acks()->mutable_applied(0)->set_version(version);
    stream_->Write(request);
  }
  // Reads until `wanted` has come so often; false if the stream has ended first. What is in the same message is read.
  bool ReadUntil(v1::FollowItem::WhatCase wanted, int count = 1) {
    v1::FollowResponse response;
    while (stream_->Read(&response)) {
      for (const v1::FollowItem& item : response.items()) count -= item.what_case() == wanted;
      if (count <= 0) return true;
    }
    return false;
  }
  // Reads to the end; why it ended.
  absl::Status AwaitEnd() {
    v1::FollowResponse response;
    while (stream_->Read(&response)) {
    }
    const grpc::Status status = std::exchange(stream_, nullptr)->Finish();
    return FromCall(status);
  }
  absl::Status Leave() {
    context_.TryCancel();
    return AwaitEnd();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<v1::Replication::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::FollowRequest, v1::FollowResponse>> stream_;
};

}  // namespace lodestone::server
