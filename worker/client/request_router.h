// Splits what a push or a pull touches into messages: one server each, parts of one shard adjacent, none longer than
// asked for unless a single block or row is.
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
#include "proto/parameter_server.pb.h"
#include "worker/client/table_handle.h"

namespace lodestone::worker {

// One shard's share of one source: some blocks of a dense table, or some of the keys asked for.
struct RoutedPart {
  ShardId shard = 0;
  const TableHandle* table = nullptr;
  bool dense = false;
  size_t source = 0;                // Index into RouteRequest::dense or ::rows.
  std::span<const uint32_t> items;  // Dense: block indices; rows: indices into the source's keys. Ascending.
};

// What goes to one server in one message.
struct RoutedMessage {
  uint32_t server = 0;
  std::vector<RoutedPart> parts;
  size_t shards = 0;  // Distinct shards among the parts.
};

// A message list and what its parts point into.
struct Routing {
  std::vector<std::vector<uint32_t>> orders;
  std::vector<RoutedMessage> messages;
};

// What is to be split.
struct KeysOfTable {
  const TableHandle* table = nullptr;
  std::span<const Key> keys;
};
struct RouteRequest {
  std::span<const TableHandle* const> dense;
  std::span<const KeysOfTable> rows;
};

// How long messages may be, payload and header; the answers to a pull as well.
struct MessageLimits {
  size_t bytes_target = 2 << 20;  // A message ends before it grows beyond.
  size_t bytes_max = 64 << 20;    // A block or row that needs more is an error.
};

// Every block of the dense tables and every key (duplicates included) lands in exactly one part. INVALID_ARGUMENT,
// naming the table, if a single block or row does not fit into bytes_max, if a table is of the wrong shape for its
// place, or if there are more than limits::kRowsPerBatchMax keys.
absl::StatusOr<Routing> Route(const ShardMap& map, const RouteRequest& request, const MessageLimits& limits);

// The description of `part` that goes into a message's header.
v1::Part ToProto(const RoutedPart& part);

// Floats of the values of `part`: all its blocks or rows.
size_t ValueCount(const RoutedPart& part);

}  // namespace lodestone::worker
