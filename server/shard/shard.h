// The unit of ownership and order: a version, the windows of the workers, and its part of every table.
//
// Not thread-safe, but for version(), term() and lineage(): owned by one executor, which runs one message at a time.
// The DenseTables that AddTable returns may be read by others, as dense_table.h says.
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
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_view.h"
#include "common/base/types.h"
#include "server/shard/part_view.h"
#include "server/shard/sequence_window.h"
#include "server/shard/shard_restore.h"
#include "server/shard/shard_rollback.h"
#include "server/shard/shard_steps.h"
#include "server/shard/step_collector.h"
#include "server/table/dense_table.h"
#include "server/table/embedding_table.h"
#include "server/table/evictions.h"

namespace lodestone::server {

// What a shard and those of its parts that replace it share.
struct ShardContents {
  explicit ShardContents(ShardId shard) : id(shard) {}

  const ShardId id;
  std::atomic<Version> version{0};  // Written by the executor.
  absl::flat_hash_map<TableId, std::unique_ptr<DenseTable>> dense;
  absl::flat_hash_map<TableId, std::unique_ptr<EmbeddingTable>> rows;
  absl::flat_hash_map<Incarnation, SequenceWindow> windows;
  absl::flat_hash_map<TableId, std::unique_ptr<StepCollector>> steps;  // Of tables whose settings say so.

  // The shard's part of a table. INVALID_ARGUMENT if there is no such table of this kind.
  absl::StatusOr<DenseTable*> FindDense(TableId table) const;
  absl::StatusOr<EmbeddingTable*> FindRows(TableId table) const;
  // Gives its part of the table the settings of `spec`. INVALID_ARGUMENT if there is no such table;
  // FAILED_PRECONDITION if it is another one.
  absl::Status SetSettings(const v1::TableSpec& spec);
  // Gives all parts the settings that their tables were made with, and no steps.
  void ResetSettings();
  // The table has these settings now: it gets a collector of steps, or loses it, or that goes by other numbers. Steps
  // are counted from 0 again if the kind of consistency or their batches are others.
  void AdjustSteps(Table* table, const TableSettings& settings);
  // Applies a part of a push.
  void Apply(const PartView& part, uint64_t now_ms, Version version, Evictions* evictions);
  // DATA_LOSS unless `next` is the version after this one.
  absl::Status CheckFollows(Version next) const;
};

// How many rows of a table a sweep is to look at.
struct SweepShare {
  TableId table = 0;
  size_t rows = 0;
};

class Shard {
 public:
  explicit Shard(ShardId id) : contents_(id) {}

  ShardId id() const { return contents_.id; }
  // The newest version. Thread-safe.
  Version version() const { return contents_.version.load(std::memory_order_acquire); }
  // The term of the update that made it (RouteResponse.terms); 0 before any. Thread-safe.
  uint64_t term() const { return term_.load(std::memory_order_relaxed); }

  // The rank of what is here of the shard among all states and updates of it, before term and version: its lineage. It
  // grows when the shard goes back to a checkpoint, never falls on a disk, and moves with the shard: a follower's is at
  // least its owner's. 0: unknown. Thread-safe.
  uint64_t lineage() const { return lineage_.load(std::memory_order_relaxed); }
  void RaiseLineage(uint64_t lineage) {
    if (lineage > this->lineage()) lineage_.store(lineage, std::memory_order_relaxed);
  }

  // The newest update, which made version(), was the first of `term`. REQUIRES: term > term().
  void BeginTerm(uint64_t term);
  // All up to version() is of `term` or earlier: the shard was restored so.
  void RestoreTerm(uint64_t term);
  // Whether all updates up to `version`, of `term`, are among the shard's own, as far as it knows.
  bool Includes(uint64_t term, Version version) const;

  // Makes the shard's part of `table`, and returns it if the table is dense. `dense`: that part, where it is made
  // already, which takes long; no executor need wait for it. REQUIRES: it has none yet.
  const DenseTable* AddTable(Table* table, uint64_t now_ms, std::unique_ptr<DenseTable> dense = nullptr);

  struct PushResult {
    Version version = 0;
    bool duplicate = false;
    bool late = false;                 // ShardSteps::Judgement.
    std::vector<AppliedStep> applied;  // Steps that ended with it.
  };
  // Applies all parts as one update, once per (worker, sequence); those of tables with steps wait for these
  // (shard_steps.h) with `contribution`, once per (step, batch). The parts have been checked. The rows that made room
  // are noted in `evictions` (may be null). OUT_OF_RANGE if the sequence is older than the worker's window; errors as
  // ShardSteps::Judge.
  absl::StatusOr<PushResult> Push(Incarnation worker, Sequence sequence, std::span<const PartView> parts,
                                  uint64_t now_ms, Evictions* evictions = nullptr,
                                  const v1::Contribution* contribution = nullptr);

  // Whether Push would only acknowledge this one.
  bool HasApplied(Incarnation worker, Sequence sequence) const;

  // The tables' steps, to look at.
  const ShardSteps& steps() const { return steps_; }
  // Applies the step that a table collects, as an update of its own, and returns which that was. REQUIRES: its
  // collector's may_close() or may_end().
  uint64_t CloseStep(TableId table, uint64_t now_ms, Evictions* evictions = nullptr);

  // Copies rows to dst and returns the version they are of.
  Version Read(const Table& table, ByteView keys, size_t count, uint64_t now_ms, float* dst);
  // The shard's rows of an embedding table, to be read together with those of others. REQUIRES: the table is here.
  EmbeddingTable* RowsOf(const Table& table) { return contents_.rows.find(table.id())->second.get(); }
  // Brings into the cache what a Push of `parts` starts from.
  void Prefetch(std::span<const PartView> parts) const;

  // Bytes of its part of all tables: values, state, keys, index.
  uint64_t TableBytes() const;

  // Forgets the window of a worker whose session has ended.
  void ForgetWorker(Incarnation worker) { contents_.windows.erase(worker); }
  // Forgets the windows of the workers of which this is true.
  void ForgetWorkersIf(absl::FunctionRef<bool(Incarnation)> is_forgotten);
  // It is owned by this ps from now on, which may not have heard of all uses of its rows.
  void BeginOwned();
  // The sweep for rows that outlived their TTL, or are too many since their limit was lowered, one of which is made
  // each second: what of each table it is to look at, and a step of it, which looks at some thousands of rows and takes
  // them off `left`. A step is one update, or none if it finds no such rows (false); it notes them in `evictions` (may
  // be null).
  std::vector<SweepShare> BeginSweep();
  bool EvictExpired(uint64_t now_ms, std::vector<SweepShare>* left, Evictions* evictions = nullptr);

  // Applies what was logged as the update `version`; the parts of a push have been checked, and `evictions` says what
  // made room then. DATA_LOSS, naming the shard, if it does not follow on version(), or goes another way than when it
  // was logged; the shard is of no use then.
  absl::Status ReplayPush(Version version, Incarnation worker, Sequence sequence, std::span<const PartView> parts,
                          uint64_t now_ms, Evictions* evictions, const v1::Contribution* contribution = nullptr);
  // `ends_steps`: steps ended with it (ClosedStep), so that may_end() is enough.
  absl::Status ReplayCloseStep(Version version, const AppliedStep& closed, bool ends_steps, uint64_t now_ms,
                               Evictions* evictions);
  absl::Status ReplayExpiry(Version version, std::span<const EvictedKeys> evicted);
  // Gives the shard's part of a table other settings, as one update; and the same as it was logged. REQUIRES: `table`
  // is here, and `settings` are its (Table::Keep).
  void ChangeSettings(const Table& table, const TableSettings* settings);
  absl::Status ReplaySettings(Version version, const v1::TableSpec& spec);
  // Those of its part of the table now. REQUIRES: the table is here.
  const TableSettings& SettingsOf(const Table& table) const;

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
    uint64_t lineage = 0;
    std::optional<Version> after;                // Blocks and pages are those that changed after it; nullopt: all.
    std::vector<Snapshot::DensePart> dense;      // By table id.
    std::vector<RowsPart> rows;                  // By table id.
    std::vector<const TableSettings*> settings;  // By table id: those that are not what the table was made with.
    std::vector<std::pair<Incarnation, SequenceWindow>> windows;
    struct Steps {
      v1::TableSteps header;
      std::vector<std::shared_ptr<const StepContribution>> pending;
    };
    std::vector<Steps> steps;  // By table id.
  };
  // The state, of blocks and pages what changed after `after`; all if it is null.
  State CollectState(const Version* after) const;

  // Takes the contents from a checkpoint or another server, or those of one table from an earlier version.
  ShardRestore& restore() { return restore_; }
  ShardRollback& rollback() { return rollback_; }
  // Returns to what it was when it had got its tables and nothing else, whatever came since.
  void Reset(uint64_t now_ms);
  // The same, and frees its dense blocks, until the next Reset: it is not read meanwhile, but by who began before.
  void Free(uint64_t now_ms);
  // Whether the shard may hold anything of the table: not if it is dense and has no block here.
  bool Holds(TableId table) const;

 private:
  // Of all tables, that a step of a sweep looks at.
  static constexpr size_t kSweepStepRows = 4 << 10;

  ShardContents contents_;
  std::atomic<uint64_t> term_{0};     // Written by the executor.
  std::atomic<uint64_t> lineage_{0};  // Likewise.
  ShardRestore restore_{&contents_};
  ShardRollback rollback_{&contents_};
  ShardSteps steps_{&contents_};
  // The term before term(), and the last version in it; nothing is known of those before.
  std::optional<std::pair<uint64_t, Version>> former_term_;
};

}  // namespace lodestone::server
