// One shard's rows of an embedding table: applies updates to them, evicts some, and collects and restores them.
//
// Not thread-safe: owned by the shard's executor. Snapshots (pages by reference) may be read anywhere.
// Ownership: owned by its Shard; a page lives as long as there is a reference to it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/byte_view.h"
#include "common/base/limits.h"
#include "common/base/types.h"
#include "proto/checkpoint.pb.h"
#include "server/table/counted_buffer.h"
#include "server/table/eviction_policy.h"
#include "server/table/evictions.h"
#include "server/table/page_layout.h"
#include "server/table/row_store.h"
#include "server/table/table.h"

namespace lodestone::server {

class EmbeddingRestore;

class EmbeddingTable {
 public:
  EmbeddingTable(Table* table, uint64_t now_ms);
  ~EmbeddingTable();

  // Rows that are wanted in `dst` ([count, dim]): those of `count` unaligned keys, in order.
  struct Wanted {
    EmbeddingTable* table = nullptr;
    ByteView keys;
    size_t count = 0;
    float* dst = nullptr;
  };
  // Copies rows of any tables of one executor. A key without a row reads as its initial values.
  static void Read(std::span<const Wanted> wanted, uint64_t now_ms);
  void Read(ByteView keys, size_t count, uint64_t now_ms, float* dst) {
    const Wanted wanted{this, keys, count, dst};
    Read({&wanted, 1}, now_ms);
  }
  // Brings into the cache what the look-ups of an Apply with these keys start from: see RowStore::Prefetch.
  void Prefetch(ByteView keys, size_t count) const { rows_.Prefetch(keys, count); }

  // Applies gradients ([count, dim] unaligned floats) to the rows of `count` unaligned keys, as part of the update that
  // makes the shard's version `version`. New keys get a row if they are admitted. The rows that make room for them are
  // noted in `evictions`, or, in a replay, taken from there; null: they are not noted. Unless `takes_new`, keys without
  // a row are turned away. Unless it `ends_step`, the next Apply is of the same push and takes the same step of the
  // schedule. `delay`: see TableSettings::StepFor.
  void Apply(ByteView keys, ByteView gradients, size_t count, uint64_t now_ms, Version version,
             Evictions* evictions = nullptr, bool takes_new = true, bool ends_step = true, uint64_t delay = 0);
  // Bytes that the table would grow by with the rows of those of `count` unaligned keys that have none: none that an
  // eviction makes room for, or that the admission still holds back.
  uint64_t BytesFor(ByteView keys, size_t count) const;
  // At least that for `count` keys, whatever the shard holds, but for an index that grows: see kIndexGrowthPerRow.
  static uint64_t BytesAtMost(const Table& table, size_t count);
  // An index that grows does so by at most this for each of its rows.
  static constexpr uint64_t kIndexGrowthPerRow = 8;

  // Evicts the rows that outlived their TTL among the next `rows_max` (rounded up to pages; the calls come round), as
  // the update `version`, and notes them in `evictions` (may be null). False, and nothing changed, if there were none.
  bool EvictExpired(uint64_t now_ms, Version version, Evictions* evictions = nullptr, size_t rows_max = SIZE_MAX);
  // A sweep begins, one of which is made each second: how many rows it is to look at; 0: none.
  size_t BeginSweep() { return policy_.BeginSweep(rows_); }
  // Its shard is owned by this ps from now on.
  void BeginOwned() { policy_.KeepForNow(); }
  // Evicts these rows, as EvictExpired did when the update `version` was applied first. DATA_LOSS if one is not there.
  absl::Status ReplayExpiry(std::span<const Key> keys, Version version);

  // The pages that changed after `after` (all if null), and the keys evicted since.
  struct Snapshot {
    struct Page {
      BufferRef page;
      Version version = 0;  // When it last changed.
    };
    std::vector<Page> pages;
    std::vector<Key> evicted;
  };
  // nullopt if the evictions since `after` are no longer all known: take a whole snapshot instead.
  std::optional<Snapshot> Collect(const Version* after) const;

  const Table& table() const { return *table_; }
  Table* mutable_table() { return table_; }
  // What the next Apply goes by.
  const TableSettings& settings() const { return *settings_; }
  void SetSettings(const TableSettings* settings);
  const PageLayout& layout() const { return rows_.layout(); }
  size_t rows() const { return rows_.size(); }
  // What the rows take: values, state, keys, index, uses.
  uint64_t bytes() const { return counted_bytes_; }

  using Usage = EvictionPolicy::Usage;
  // What a checkpoint keeps: as a Snapshot, and all that is counted. Not the evicted keys.
  struct State {
    struct Page {
      uint32_t index = 0;
      BufferRef page;
      Version version = 0;
    };
    uint64_t updates = 0;
    uint64_t made_ms = 0;
    uint32_t pages_total = 0;  // Changed or not.
    std::vector<Page> pages;
    std::vector<Usage> usage;  // Of the rows of `pages`; empty if the table does not evict.
    std::vector<std::pair<Key, uint32_t>> candidates;
  };
  // The pages that changed after `after`; all if it is null. Uses do not count as changes.
  State CollectState(const Version* after) const;

  // Restoring and rolling back (shard.h; errors as in embedding_restore.h). Nothing is changed before CommitRestored or
  // CommitRollback.
  absl::Status RestoreRows(const v1::RowsTable& header, ShardId shard);
  absl::Status RestorePage(const v1::RowsPage& header, std::span<const uint8_t> payload);
  // Checks everything together and makes the index. OK if nothing was given.
  absl::Status PrepareRestored(ShardId shard, Version version);
  // REQUIRES: PrepareRestored was OK.
  void CommitRestored(Version version);
  // The same for a table that has had updates: what was given takes the place of all that it holds, as the update
  // `version`; without anything given, it is as one made at `now_ms`. REQUIRES: PrepareRestored was OK.
  void CommitRollback(Version version, uint64_t now_ms);
  void AbandonRestored();

 private:
  friend class EmbeddingReader;

  // The update that is being applied.
  struct Update {
    uint64_t now_ms = 0;
    Version version = 0;
    Evictions* evictions = nullptr;
    bool takes_new = true;
  };
  void ApplyBatch(const RowStore::Batch& batch, ByteView gradients, const Optimizer::Step& step, const Update& update);
  void UpdateRows(const Optimizer::Step& step, std::span<const RowUpdate> rows) const;
  // The row of a key that may have been inserted since its batch was looked up; a new one if there is none and it is
  // admitted, otherwise kNoRow.
  RowId FindOrInsert(Key key, const Update& update);
  // Makes a row with initial values. May evict others and move the index.
  RowId Insert(Key key, const Update& update);
  void MakeRoom(const Update& update);
  // False if one has no row.
  bool EvictKeys(std::span<const Key> keys, Version version);
  void NoteEvicted(Key key, Version version);
  void CountBytes();
  EmbeddingRestore& Restoring();

  Table* const table_;
  const TableSettings* settings_;
  RowStore rows_;
  EvictionPolicy policy_;
  uint64_t updates_ = 0;                  // Pushes, for the learning-rate schedule.
  std::vector<uint8_t> straddling_rows_;  // Copies of a batch's gradients that lie in several runs.
  std::deque<std::pair<Version, Key>> evicted_;
  Version evictions_known_since_ = 0;  // Evictions at this version or before are forgotten.
  uint64_t counted_bytes_ = 0;
  size_t counted_rows_ = 0;
  std::unique_ptr<EmbeddingRestore> restoring_;  // Null unless something has been given.
};

}  // namespace lodestone::server
