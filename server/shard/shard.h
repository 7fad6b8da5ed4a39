// The unit of ownership and order: a version, the windows of the workers, and its part of every table.
//
// Not thread-safe, but for version(): owned by one executor, which runs one message at a time. The DenseTables that
// AddTable returns may be read by others, as dense_table.h says.
//
// Ownership: owned by the store.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_view.h"
#include "common/base/types.h"
#include "proto/checkpoint.pb.h"
#include "server/shard/sequence_window.h"
#include "server/table/dense_table.h"
#include "server/table/embedding_table.h"
#include "server/table/evictions.h"

namespace lodestone::server {

class Shard {
 public:
  explicit Shard(ShardId id) : id_(id) {}

  ShardId id() const { return id_; }
  // The newest version. Thread-safe.
  Version version() const { return version_.load(std::memory_order_acquire); }
  // The term of the update that made it (RouteResponse.terms); 0 before any. Thread-safe.
  uint64_t term() const { return term_.load(std::memory_order_relaxed); }

  // The newest update, which made version(), was the first of `term`. REQUIRES: term > term().
  void BeginTerm(uint64_t term);
  // All up to version() is of `term` or earlier: the shard was restored so.
  void RestoreTerm(uint64_t term);
  // Whether all updates up to `version`, of `term`, are among the shard's own, as far as it knows.
  bool Includes(uint64_t term, Version version) const;

  // Makes the shard's part of `table`, and returns it if the table is dense. REQUIRES: it has none yet.
  const DenseTable* AddTable(Table* table, uint64_t now_ms);

  // One table's piece of a push, pointing into the payload.
  struct PushPart {
    const Table* table = nullptr;
    std::span<const BlockIndex> blocks;  // Dense.
    ByteView keys;                       // Embedding: row_count unaligned keys.
    size_t row_count = 0;
    ByteView gradients;  // Unaligned floats.
  };
  struct PushResult {
    Version version = 0;
    bool duplicate = false;
  };
  // Applies all parts as one update, once per (worker, sequence). The parts have been checked. The rows that made room
  // are noted in `evictions` (may be null). OUT_OF_RANGE if the sequence is older than the worker's window.
  absl::StatusOr<PushResult> Push(Incarnation worker, Sequence sequence, std::span<const PushPart> parts,
                                  uint64_t now_ms, Evictions* evictions = nullptr);

  // Copies rows to dst and returns the version they are of.
  Version Read(const Table& table, ByteView keys, size_t count, uint64_t now_ms, float* dst);
  // The shard's rows of an embedding table, to be read together with those of others. REQUIRES: the table is here.
  EmbeddingTable* RowsOf(const Table& table) { return rows_.find(table.id())->second.get(); }
  // Brings into the cache what a Push of `parts` starts from.
  void Prefetch(std::span<const PushPart> parts) const;

  // Forgets the window of a worker whose session has ended.
  void ForgetWorker(Incarnation worker) { windows_.erase(worker); }
  // Forgets the windows of all workers but `keep`, ascending.
  void ForgetWorkersBut(std::span<const Incarnation> keep);
  // Evicts rows that outlived their TTL, as one update, and notes them in `evictions` (may be null). False, and nothing
  // changed, if there were none.
  bool EvictExpired(uint64_t now_ms, Evictions* evictions = nullptr);

  // Applies what was logged as the update `version`; the parts of a push have been checked, and `evictions` says what
  // made room then. DATA_LOSS, naming the shard, if it does not follow on version(), or goes another way than when it
  // was logged; the shard is of no use then.
  absl::Status ReplayPush(Version version, Incarnation worker, Sequence sequence, std::span<const PushPart> parts,
                          uint64_t now_ms, Evictions* evictions);
  absl::Status ReplayExpiry(Version version, std::span<const EvictedKeys> evicted);

  // All blocks and pages of some tables at one version, by reference: takes microseconds and stays as it is while
  // pushes go on.
  struct Snapshot {
    struct DensePart {
      const Table* table = nullptr;
      std::vector<DenseTable::BlockState> blocks;
    };
    struct RowsPart {
      const Table* table = nullptr;
      PageLayout layout;
      EmbeddingTable::Snapshot content;
    };
    ShardId shard = 0;
    Version version = 0;
    std::vector<DensePart> dense;
    std::vector<RowsPart> rows;
  };
  // What changed after `after` in `tables`; everything if it is null. nullopt if that is no longer known.
  std::optional<Snapshot> Collect(std::span<const Table* const> tables, const Version* after) const;

  // What a checkpoint keeps of the shard, at one version: all blocks and pages by reference, and copies of the rest.
  struct State {
    struct RowsPart {
      const Table* table = nullptr;
      PageLayout layout;
      EmbeddingTable::State content;
    };
    ShardId shard = 0;
    Version version = 0;
    uint64_t term = 0;
    std::optional<Version> after;            // Blocks and pages are those that changed after it; nullopt: all.
    std::vector<Snapshot::DensePart> dense;  // By table id.
    std::vector<RowsPart> rows;              // By table id.
    std::vector<std::pair<Incarnation, SequenceWindow>> windows;
  };
  // The state, of blocks and pages what changed after `after`; all if it is null.
  State CollectState(const Version* after) const;

  // Restoring: each block, table, page and window is given once, in any order, to a shard that has its tables and has
  // applied nothing; then FinishRestore. Blocks and tables that are not given are as they were made. INVALID_ARGUMENT,
  // naming the table and block, page or key, for what does not fit; then only AbandonRestore may follow.
  absl::Status RestoreBlock(const v1::DenseBlock& header, std::span<const uint8_t> payload);
  absl::Status RestoreRows(const v1::RowsTable& header);
  absl::Status RestorePage(const v1::RowsPage& header, std::span<const uint8_t> payload);
  absl::Status RestoreWindow(const v1::Window& window);
  // Whichever of these the record holds.
  absl::Status RestoreRecord(const v1::CheckpointRecord& record, std::span<const uint8_t> payload);
  // Checks that all fits together and takes it as the state of `version`.
  absl::Status FinishRestore(Version version);
  // Goes back to what the shard was before anything was given. REQUIRES: FinishRestore was not OK.
  void AbandonRestore();
  // Goes back to what it was when it had got its tables and nothing else, whatever came since.
  void Reset(uint64_t now_ms);

  // Rolling back: the blocks, or the rows and pages, that one table's part of the shard is to become are given in any
  // order, then taken at once. INVALID_ARGUMENT, naming the table and block, page or key, for what does not fit. Any
  // error, and DropStaged, forgets all that was given; the shard is as it was.
  absl::Status StageRestored(const v1::CheckpointRecord& record, std::span<const uint8_t> payload);
  // Takes it as the update `version`. Blocks and rows that were not given are as a table's that is made at `now_ms`;
  // windows stay. Also DATA_LOSS if `version` does not follow on version().
  absl::Status CommitRestored(TableId table, Version version, uint64_t now_ms);
  void DropStaged();
  // Records staged.
  uint64_t staged() const { return staged_count_; }
  // Whether the shard may hold anything of the table: not if it is dense and has no block here.
  bool Holds(TableId table) const;

 private:
  void ApplyParts(std::span<const PushPart> parts, uint64_t now_ms, Version version, Evictions* evictions);
  absl::Status Stage(const v1::CheckpointRecord& record, std::span<const uint8_t> payload);
  absl::Status Commit(TableId table, Version version, uint64_t now_ms);
  // DATA_LOSS unless `version` is the next one.
  absl::Status CheckFollows(Version version) const;

  const ShardId id_;
  std::atomic<Version> version_{0};  // Written by the executor.
  std::atomic<uint64_t> term_{0};    // Written by the executor.
  // The term before term(), and the last version in it; nothing is known of those before.
  std::optional<std::pair<uint64_t, Version>> former_term_;
  absl::flat_hash_map<TableId, std::unique_ptr<DenseTable>> dense_;
  absl::flat_hash_map<TableId, std::unique_ptr<EmbeddingTable>> rows_;
  absl::flat_hash_map<Incarnation, SequenceWindow> windows_;
  std::optional<TableId> staged_;  // What something is staged for.
  uint64_t staged_count_ = 0;      // Records.
};

}  // namespace lodestone::server
