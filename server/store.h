// All that a ps holds: its tables, the shards it owns, the executors that apply updates to them, and the workers'
// sessions. Knows no gRPC service; service.cc and broadcast.cc are the ways in and out.
//
// Thread-safe. Callbacks run on the calling thread or on an executor's, and must be quick.
//
// The store owns everything it holds; slices that it hands out keep the blocks they point into alive by themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/time_source.h"
#include "common/types.h"
#include "common/wire.h"
#include "grpcpp/support/slice.h"
#include "proto/admin.pb.h"
#include "proto/parameter_server.pb.h"
#include "proto/table.pb.h"

namespace lodestone {

class Store {
 public:
  struct Options {
    uint64_t seed = 1;
    uint32_t shards = 64;
    uint32_t executors = 1;
    uint64_t memory_max_bytes = 0;  // 0: no limit.
    const TimeSource* time = nullptr;
  };
  explicit Store(const Options& options);
  ~Store();  // Runs what is queued, then stops the executors.

  // Sets the shards that this ps owns; until then every push and pull is UNAVAILABLE. Call once.
  void OwnShards(const std::vector<ShardId>& shards);

  // Creates tables and opens the session of `worker` (0: none). See ParameterServer.EnsureTables.
  absl::StatusOr<v1::EnsureTablesResponse> EnsureTables(const v1::EnsureTablesRequest& request);

  // Applies a push. `header.payload()` is empty; the numbers are in `payload`. A push is checked whole before any shard
  // sees it: it is applied to all of its shards or refused.
  using PushDone = std::function<void(absl::StatusOr<v1::PushResponse>)>;
  void Push(v1::PushRequest header, Payload payload, PushDone done);

  // Bytes of `header`'s parts in its payload, for splitting PushPull's. NOT_FOUND or INVALID_ARGUMENT as Push.
  absl::StatusOr<size_t> PushPayloadBytes(const v1::PushRequest& header) const;

  // Values for a pull: the answer without its payload, and the payload as slices in order.
  struct Values {
    v1::PullResponse header;
    std::vector<grpc::Slice> payload;
  };
  using PullDone = std::function<void(absl::StatusOr<Values>)>;
  void Pull(v1::PullRequest header, Payload payload, PullDone done);

  // What a subscriber wants of each shard.
  struct Subscription {
    struct Table {
      TableId id = 0;
      bool rows = false;
    };
    std::vector<Table> tables;
  };
  // Checks that all tables exist.
  absl::StatusOr<Subscription> MakeSubscription(const v1::SubscribeRequest& request) const;

  // A change of one shard: all that differs between `from_version` (or nothing: anchor) and `version`. Parts hold about
  // limits::kDeltaBytesTarget payload bytes at most, unless a single block or row has more.
  struct ShardChange {
    ShardId shard = 0;
    Version from_version = 0;
    Version version = 0;
    bool anchor = false;
    struct Piece {
      v1::Part part;
      std::vector<grpc::Slice> payload;
      size_t payload_bytes = 0;
    };
    std::vector<Piece> pieces;  // Empty if nothing of the subscription changed.
  };
  // Calls `done` with the change of `shard` since `from` (nullopt: an anchor), taken at one version of the shard. If
  // the past is no longer known (evicted keys forgotten), an anchor is returned instead. REQUIRES: the shard is owned.
  void CollectChange(ShardId shard, const Subscription& subscription, std::optional<Version> from,
                     std::function<void(ShardChange)> done);

  // The shards owned, ascending; empty before OwnShards.
  std::vector<ShardId> owned_shards() const;
  // The newest version of an owned shard, without waiting for its executor.
  Version VersionOf(ShardId shard) const;
  // When `table`'s subscribers are to be served; nullopt if there is no such table.
  std::optional<v1::Broadcast> BroadcastOf(TableId table) const;
  // `listener` is called, on an executor's thread, each time a table has had its broadcast.every_pushes pushes. Call
  // once, before the first push.
  void SetBroadcastListener(std::function<void(TableId)> listener);

  // Once a second or so: evicts what has outlived its TTL, forgets idle sessions, measures rates.
  void Tick();

  // Fills server (what of it the store knows), tables, executors and sessions.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lodestone
