// The reader of the deltas of one Subscribe stream: checks that they continue what is held without a gap, and gives
// their blocks and rows to a listener.
//
// Not thread-safe: a stream's deltas come one after the other. Readers of several streams may share ShardPositions.
#pragma once

#include <cstdint>
#include <map>

#include "absl/status/status.h"
#include "common/wire/message.h"
#include "proto/parameter_server.pb.h"
#include "worker/client/shard_positions.h"
#include "worker/client/types.h"

namespace lodestone::worker {

class DeltaReader {
 public:
  // `tables`, by id, are those subscribed to, `positions` what is held of them, and `listener` must all outlive this.
  DeltaReader(const std::map<TableId, const TableHandle*>* tables, ShardPositions* positions,
              const SubscriptionListener* listener)
      : tables_(tables), positions_(positions), listener_(listener), name_(positions->NewReader()) {}

  // Reads a message; `header` without its payload. INTERNAL if it does not continue what is held or contradicts itself:
  // then the stream must end, and nothing is held of the shard at fault. The listener has got what precedes the fault
  // in the message. What a former owner sends late is dropped.
  absl::Status Read(const v1::Delta& header, const Payload& payload);

 private:
  absl::Status ReadShard(const v1::Delta::ShardDelta& delta, ByteView* payload);
  // Takes the parts of `delta` from `payload`, and passes them to the listener if they are `admitted`.
  absl::Status ReadParts(const v1::Delta::ShardDelta& delta, bool admitted, ByteView* payload);
  absl::Status ReadBlocks(const v1::Part& part, const TableHandle& table, bool admitted, ByteView* payload);
  absl::Status ReadRows(const v1::Part& part, const TableHandle& table, bool admitted, ByteView* payload);

  const std::map<TableId, const TableHandle*>* const tables_;
  ShardPositions* const positions_;
  const SubscriptionListener* const listener_;
  const uint64_t name_;  // Among the readers of `positions_`.
};

}  // namespace lodestone::worker
