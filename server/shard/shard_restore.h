// The contents of a shard taken from a checkpoint, or from the server that owned the shard.
//
// Each block, table, page and window is given once, in any order, to a shard that has its tables and has applied
// nothing; then Finish. Blocks and tables that are not given are as they were made. INVALID_ARGUMENT, naming the table
// and block, page or key, for what does not fit; then only Abandon may follow.
//
// Not thread-safe: for the shard's executor. Ownership: belongs to the shard.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "proto/checkpoint.pb.h"

namespace lodestone::server {

struct ShardContents;

class ShardRestore {
 public:
  explicit ShardRestore(ShardContents* contents) : contents_(contents) {}

  absl::Status Block(const v1::DenseBlock& header, std::span<const uint8_t> payload);
  absl::Status Rows(const v1::RowsTable& header);
  absl::Status Page(const v1::RowsPage& header, std::span<const uint8_t> payload);
  absl::Status Window(const v1::Window& window);
  // Any of these, as the record says.
  absl::Status Record(const v1::CheckpointRecord& record, std::span<const uint8_t> payload);

  // Checks that all fits together and takes it as the contents at `version`.
  absl::Status Finish(Version version);
  // Drops what was given. The shard is then as it was made.
  void Abandon();

 private:
  ShardContents* const contents_;
};

}  // namespace lodestone::server
