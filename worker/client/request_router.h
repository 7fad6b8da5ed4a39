// The routing of a push or a pull: splits what it touches into messages of one server each, none longer than asked for
// unless a single block or row is.
//
// Thread safety: pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "common/wire/shard_map.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "proto/parameter_server.pb.h"
#include "worker/client/types.h"

namespace lodestone::worker {

// What goes to one server in one message, or is asked of it. The parts of one source are adjacent.
struct ShardMessage {
  // One shard's share of one source: some blocks of a dense table, or some of the keys.
  struct Part {
    ShardId shard = 0;
    const TableHandle* table = nullptr;
    bool dense = false;
    size_t source = 0;                        // Index into the dense sources or those of rows.
    std::span<const uint32_t> items;          // Dense: block indices; rows: indices into the source's keys. Ascending.
    v1::Part::More more = v1::Part::NOTHING;  // Of a push.

    // Floats of the values of all its blocks or rows.
    size_t ValueCount() const;
  };
  // Of the values of all its parts.
  size_t ValueBytes() const;

  uint32_t server = 0;
  std::vector<Part> parts;
};

// The messages of a push or a pull, and what their parts' items point into.
struct Routing {
  std::vector<std::vector<uint32_t>> orders;
  std::vector<ShardMessage> messages;
};

// Limits of the length of messages, payload and header; of the answers to a pull as well.
struct MessageLimits {
  // A message ends before it grows beyond: eight blocks of the usual size, and their description.
  size_t bytes_target = (2 << 20) + (4 << 10);
  size_t bytes_max = 64 << 20;  // A block or row that needs more is an error.
  // All that is for one shard goes in one message, however long: an error if that needs more than bytes_max.
  bool whole_shards = false;
  // Each shard that holds something of a table gets a part of it, of no rows where there are none for it.
  bool every_shard = false;
};

class RequestRouter {
 public:
  // `map` must outlive this.
  RequestRouter(const ShardMap& map, const MessageLimits& limits) : map_(map), limits_(limits) {}

  // Every block of the dense tables and every key (duplicates included) lands in exactly one part. INVALID_ARGUMENT,
  // naming the table, if a single block or row does not fit into bytes_max, if a table is of the wrong shape for its
  // place, or if there are more than limits::kRowsPerBatchMax keys.
  absl::StatusOr<Routing> RoutePush(std::span<const DenseGradient> dense, std::span<const RowGradients> rows) const;
  absl::StatusOr<Routing> RoutePull(std::span<const DensePull> dense, std::span<const RowPull> rows) const;

  const ShardMap& map() const { return map_; }

 private:
  template <typename Dense, typename Rows>
  absl::StatusOr<Routing> Route(std::span<const Dense> dense, std::span<const Rows> rows) const;

  const ShardMap& map_;
  const MessageLimits limits_;
};

// Indices of `messages` such that servers take turns, and those to one server keep their order.
std::vector<size_t> ServersInTurn(const std::vector<ShardMessage>& messages);

// Number of `parts` from `begin` on that are one part on the wire: rows of one source, which may be of several shards.
size_t RunLength(std::span<const ShardMessage::Part> parts, size_t begin);

// Appends the descriptions of the message's parts, as its header has them: one for each run.
void AddParts(const ShardMessage& message, google::protobuf::RepeatedPtrField<v1::Part>* parts);

}  // namespace lodestone::worker
