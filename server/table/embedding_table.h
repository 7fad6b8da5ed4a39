// One shard's rows of an embedding table: an index over copy-on-write pages.
//
// Stamps and counts for eviction stand beside the pages, so that reading a row never writes one.
//
// Not thread-safe: owned by the shard's executor. Snapshots (pages by reference) may be read anywhere.
// Ownership: owned by its Shard; pages live as long as anybody holds a reference.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/byte_view.h"
#include "common/base/types.h"
#include "proto/checkpoint.pb.h"
#include "server/table/buffer.h"
#include "server/table/evictions.h"
#include "server/table/page_layout.h"
#include "server/table/row_index.h"
#include "server/table/table.h"

namespace lodestone::server {

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
  // Brings into the cache what the look-ups of an Apply with these keys start from, if they are so few that none would
  // be under way while others are worked on.
  void Prefetch(ByteView keys, size_t count) const;

  // Applies gradients ([count, dim] unaligned floats) to the rows of `count` unaligned keys, as part of the update that
  // makes the shard's version `version`. New keys get a row if they are admitted. The rows that make room for them are
  // noted in `evictions`, or, in a replay, taken from there; null: nobody wants to know.
  void Apply(ByteView keys, ByteView gradients, size_t count, uint64_t now_ms, Version version,
             Evictions* evictions = nullptr);

  // Evicts rows that outlived their TTL, as the update `version`, and notes them in `evictions` (may be null). False,
  // and nothing changed, if there were none.
  bool EvictExpired(uint64_t now_ms, Version version, Evictions* evictions = nullptr);
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
  const PageLayout& layout() const { return layout_; }
  size_t rows() const { return index_.size(); }

  // What is kept beside the rows for eviction, by page; only if the table evicts.
  struct Usage {
    uint32_t last_used = 0;  // In kTickMs since the table was made.
    uint32_t count = 0;      // Uses, saturating.
  };
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

  // Restoring and rolling back (shard.h). Nothing is changed before CommitRestored or CommitRollback.
  absl::Status RestoreRows(const v1::RowsTable& header, ShardId shard);
  absl::Status RestorePage(const v1::RowsPage& header, std::span<const uint8_t> payload);
  // Checks everything together and makes the index.
  absl::Status PrepareRestored(ShardId shard, Version version);
  // REQUIRES: PrepareRestored was OK.
  void CommitRestored(Version version);
  // The same for a table that has had updates: what was given takes the place of all that it holds, as the update
  // `version`; without anything given, it is as one made at `now_ms`. REQUIRES: PrepareRestored was OK.
  void CommitRollback(Version version, uint64_t now_ms);
  void AbandonRestored();

 private:
  struct Page {
    BufferRef buffer;
    Version version : 63 = 0;  // When it last changed.
    // A snapshot may hold it too. Other pages are written without a look at their references, which would be a cache
    // miss for each row.
    mutable bool may_be_shared : 1 = false;
  };
  struct Restoring;  // embedding_restoring.h
  class Reader;      // embedding_read.cc

  // Keys are looked up in batches, so that their cache misses overlap: first those of the index, then those of the
  // rows.
  static constexpr size_t kBatchRows = 32;
  struct Batch {
    size_t begin = 0;  // Of its keys among all.
    size_t count = 0;
    const uint8_t* keys = nullptr;  // Not aligned.
    uint64_t evictions = 0;         // Until the rows were found.
    RowId rows[kBatchRows];
    uint8_t straddling[kBatchRows * sizeof(Key)];  // The keys, if they lie in several runs.
  };
  // Calls visit(batch) for all of `count` keys, in order.
  template <typename Visit>
  void ForEachBatch(ByteView keys, size_t count, const Visit& visit);
  void FindRows(Batch* batch) const;
  // The update that is being applied.
  struct Update {
    uint64_t now_ms = 0;
    Version version = 0;
    Evictions* evictions = nullptr;
  };
  void ApplyBatch(const Batch& batch, ByteView gradients, const Optimizer::Step& step, const Update& update);
  // The row of a key that may have been inserted since its batch was looked up; a new one if there is none and it is
  // admitted, otherwise kNoRow.
  RowId FindOrInsert(Key key, const Update& update);
  void UpdateRows(const Optimizer::Step& step, std::span<const RowUpdate> rows) const;

  uint32_t PlaceOf(RowId row) const { return row & (layout_.rows() - 1); }

  bool Admit(Key key, Version version);
  void ForgetSomeCandidates();
  // Makes a row with initial values. May evict others and move the index.
  RowId Insert(Key key, const Update& update);
  RowId TakeFreeRow();
  // Makes the row's page writable (copies it if it is shared), stamps row and page as changed at `version` and returns
  // the row.
  float* Touch(RowId row, Version version) {
    Page& page = pages_[row >> layout_.rows_log2];
    if (page.may_be_shared) Unshare(&page);
    page.version = version;
    const uint32_t place = PlaceOf(row);
    layout_.Changed(page.buffer)[place] = ChangedStamp(version);
    return layout_.Row(page.buffer, place);
  }
  void Unshare(Page* page);
  void Use(RowId row, uint64_t now_ms);
  void Evict(RowId row, Version version);
  void MakeRoom(const Update& update);
  std::vector<Key> ColdestKeys() const;
  // False if one has no row.
  bool EvictKeys(std::span<const Key> keys, Version version);
  void CountBytes();

  // Constant after construction.
  Table* const table_;
  const PageLayout layout_;
  const bool track_usage_;
  const size_t rows_max_;  // Of this shard; SIZE_MAX: no limit.

  uint64_t made_ms_;
  RowIndex index_;
  std::vector<Page> pages_;
  std::vector<RowId> free_;
  uint64_t updates_ = 0;                  // Pushes, for the learning-rate schedule.
  std::vector<uint8_t> straddling_rows_;  // Copies of a batch's gradients that lie in several runs.
  std::vector<std::unique_ptr<Usage[]>> usage_;
  absl::flat_hash_map<Key, uint32_t> candidates_;  // Pushes of keys not yet admitted.
  std::deque<std::pair<Version, Key>> evicted_;
  uint64_t evictions_ = 0;             // Of rows, ever.
  Version evictions_known_since_ = 0;  // Evictions at this version or before are forgotten.
  uint64_t counted_bytes_ = 0;
  size_t counted_rows_ = 0;
  std::unique_ptr<Restoring> restoring_;
};

}  // namespace lodestone::server
