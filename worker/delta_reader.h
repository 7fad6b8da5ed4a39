// Reads the deltas of one Subscribe stream: checks that they follow one another without a gap, and takes them apart.
//
// Not thread-safe: a stream's deltas come one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/wire.h"
#include "proto/parameter_server.pb.h"
#include "worker/client.h"

namespace lodestone {

// Who wants to know what a subscription brings; see Client::Subscribe.
struct DeltaListener {
  std::function<void(const BlockUpdate&)> on_block;
  std::function<void(ShardId, Version)> on_shard;
};

class DeltaReader {
 public:
  // `tables`, by id, are those subscribed to, and `listener` must both outlive this. `shards` is cluster.shards.
  DeltaReader(const std::map<TableId, const TableHandle*>* tables, uint32_t shards, const DeltaListener* listener)
      : tables_(tables), shards_(shards), listener_(listener) {}

  // Takes in a message; `header` without its payload. INTERNAL if it does not continue what came before or contradicts
  // itself: then the stream is of no more use. What precedes the fault in the message has been told to the listener.
  absl::Status Read(const v1::Delta& header, const Payload& payload);

 private:
  // What has come of one shard.
  struct Shard {
    std::optional<Version> held;      // Complete; nullopt: nothing yet.
    std::optional<Version> incoming;  // The version of the change whose pieces are coming.
  };

  absl::Status ReadShard(const v1::Delta::ShardDelta& delta, ByteView* payload);
  absl::Status ReadBlocks(const v1::Part& part, const TableHandle& table, ByteView* payload);

  const std::map<TableId, const TableHandle*>* const tables_;
  const uint32_t shards_;
  const DeltaListener* const listener_;
  std::map<ShardId, Shard> state_;
};

}  // namespace lodestone
