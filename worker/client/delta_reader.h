// Reads the deltas of one Subscribe stream: checks that they go on from what is held without a gap, and takes them
// apart.
//
// Not thread-safe: a stream's deltas come one after the other. Readers of several streams may share Positions.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "absl/status/status.h"
#include "common/wire/message.h"
#include "proto/parameter_server.pb.h"
#include "worker/client/client.h"
#include "worker/client/shard_positions.h"

namespace lodestone::worker {

// Who wants to know what a subscription brings; see Client::Subscribe.
struct DeltaListener {
  std::function<void(const BlockUpdate&)> on_block;
  std::function<void(ShardId, Version)> on_shard;
};

class DeltaReader {
 public:
  // `tables`, by id, are those subscribed to, `positions` what is held of them, and `listener` must all outlive this.
  DeltaReader(const std::map<TableId, const TableHandle*>* tables, Positions* positions, const DeltaListener* listener)
      : tables_(tables), positions_(positions), listener_(listener), name_(positions->NewReader()) {}

  // Takes in a message; `header` without its payload. INTERNAL if it does not continue what is held or contradicts
  // itself: then the stream is of no more use, and of the shard at fault nothing is held any more. What precedes the
  // fault in the message has been told to the listener. What a former owner sends late is told to nobody.
  absl::Status Read(const v1::Delta& header, const Payload& payload);

 private:
  absl::Status ReadShard(const v1::Delta::ShardDelta& delta, ByteView* payload);
  // Takes the parts of `delta` from `payload`, and tells the listener of them if they are `told`.
  absl::Status ReadParts(const v1::Delta::ShardDelta& delta, bool told, ByteView* payload);
  absl::Status ReadBlocks(const v1::Part& part, const TableHandle& table, bool told, ByteView* payload);

  const std::map<TableId, const TableHandle*>* const tables_;
  Positions* const positions_;
  const DeltaListener* const listener_;
  const uint64_t name_;  // Among the readers of `positions_`.
};

}  // namespace lodestone::worker
