// One shard's blocks of a dense table: copy-on-write, read without visiting the owner.
//
// Thread safety: Read may be called by any thread at any time; everything else belongs to the shard's executor. A
// reader that comes during an update in place waits for those microseconds.
//
// Ownership: owned by its Shard; a block lives as long as there is a reference to it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_view.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "proto/checkpoint.pb.h"
#include "server/table/counted_buffer.h"
#include "server/table/table.h"

namespace lodestone::server {

class DenseTable {
 public:
  // The blocks of `table` that lie on `shard`, with their initial values.
  DenseTable(Table* table, ShardId shard);

  // Bytes that the blocks of `table` on `shard` take: values and state.
  static uint64_t BytesNeeded(const Table& table, ShardId shard);
  // Of these, the values alone.
  static uint64_t ValueBytes(const Table& table, ShardId shard);

  // A block as it was at `version`, which is when it last changed.
  struct BlockValue {
    BufferRef values;
    Version version = 0;
  };
  // REQUIRES: ShardOfBlock(block) is this shard.
  BlockValue Read(BlockIndex block) const;

  // Applies a gradient, ElementsOf(block) unaligned floats, as part of the update that makes the shard's version
  // `version`. `delay`: see TableSettings::StepFor.
  void Apply(BlockIndex block, ByteView gradient, Version version, uint64_t delay = 0);

  // A block with its optimizer state, for snapshots.
  struct BlockState {
    BlockIndex block = 0;
    BufferRef values;
    BufferRef state;  // Null if the optimizer has none.
    Version version = 0;
    uint64_t updates = 0;
  };
  // All blocks that changed after `after`; all if it is null.
  std::vector<BlockState> Collect(const Version* after) const;

  // Restoring (shard.h): gives a block the values and state that follow `header`.
  absl::Status Restore(const v1::DenseBlock& header, std::span<const uint8_t> payload);
  // INVALID_ARGUMENT if a block has changed after `version`.
  absl::Status CheckNoneAfter(Version version) const;
  // All blocks as they were made.
  void Reset();

  // Frees all blocks until the next Reset: their values are zeros.
  void Free();

  // Rolling back (shard.h): keeps what a block is to be, beside what it is.
  absl::Status Stage(const v1::DenseBlock& header, std::span<const uint8_t> payload);
  // All blocks become what was staged, the others what they were made as, at `version`.
  void CommitStaged(Version version);
  void DropStaged() { staged_.clear(); }
  // Whether there is no block on this shard.
  bool empty() const { return slot_count_ == 0; }

  const Table& table() const { return *table_; }
  Table* mutable_table() { return table_; }
  // What the next Apply goes by.
  const TableSettings& settings() const { return *settings_; }
  void SetSettings(const TableSettings* settings) { settings_ = settings; }

 private:
  struct Slot {
    mutable Mutex mu;
    BufferRef values ABSL_GUARDED_BY(mu);
    Version version ABSL_GUARDED_BY(mu) = 0;
    // Owned by the executor.
    BufferRef state;
    uint64_t updates = 0;
  };

  // What a block is given.
  struct Content {
    BufferRef values;
    BufferRef state;
    uint64_t updates = 0;
  };

  void Initialize(size_t slot, Version version);
  absl::StatusOr<Content> ContentOf(const v1::DenseBlock& header, std::span<const uint8_t> payload) const;
  static void Set(Slot* slot, Content content, Version version);
  Slot& SlotOf(BlockIndex block) const { return slots_[(block - first_) / table_->shards()]; }

  Table* const table_;
  const TableSettings* settings_;
  BlockIndex first_ = 0;  // The shard's blocks are first_, first_ + shards, …
  size_t slot_count_ = 0;
  bool freed_ = false;
  std::unique_ptr<Slot[]> slots_;
  absl::flat_hash_map<BlockIndex, Content> staged_;
};

}  // namespace lodestone::server
