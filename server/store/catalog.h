// The tables of a ps: creates them on all of its shards and in its logs, and knows what memory they may take.
//
// Thread-safe. A TableMap that was handed out never changes; new tables appear in the next one.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "proto/table.pb.h"
#include "server/store/memory_budget.h"
#include "server/store/settings_updates.h"
#include "server/store/table_map.h"
#include "server/table/table.h"
#include "server/wal/shard_log.h"

namespace lodestone::server {

class CommitLog;
class DenseTable;
class ServingGate;
class Shard;
class ShardSet;
class StepCloser;
class Table;
struct TableSettings;

class Catalog {
 public:
  struct Options {
    uint64_t cluster_seed = 1;
    uint64_t memory_max_bytes = 0;            // Of the process; 0: no limit.
    std::function<uint64_t()> process_bytes;  // What it takes; null: not known.
    const TimeSource* time = nullptr;
  };
  // What the pointers are to must outlive the last call.
  Catalog(const Options& options, const ServingGate* gate, ShardSet* shards, CommitLog* log, StepCloser* closer)
      : options_(options),
        gate_(gate),
        shards_(shards),
        log_(log),
        updates_(options.time, gate, shards, log, closer),
        budget_(
            options.memory_max_bytes, [this] { return totals_.bytes.load(std::memory_order_relaxed); },
            options.process_bytes) {}

  std::shared_ptr<const TableMap> tables() const;

  // The table of `spec`, if it exists; else null. Does not wait for one that is being created. Errors as Ensure's.
  // Null also if other settings are wanted of it, unless it keeps them (`keep_settings`).
  absl::StatusOr<std::shared_ptr<const TableEntry>> Find(const v1::TableSpec& spec, bool keep_settings = false) const;
  // Finds the table of `spec`, or creates it, with its parts on the adopted shards; it is logged before. One that
  // exists keeps its shape, its initializer, what an operator holds and, unless `spec` says another one, its model; it
  // takes all else of its settings from `spec`, by one update of each owned shard, which is logged and replicated as
  // any other. One table is created or changed at a time, by as many threads as there are executors, while these go on
  // with their shards. Waits for logs and executors: not for threads that serve calls. ALREADY_EXISTS, saying what to
  // do, if a table of that name has another shape, layout of its optimizer's state or model; INVALID_ARGUMENT and
  // UNIMPLEMENTED as CheckTableSpec (common/config/table_check.h); RESOURCE_EXHAUSTED if it does not fit; UNAVAILABLE
  // if it cannot be logged; FAILED_PRECONDITION if contributions to a step wait, and the consistency would be of
  // another kind or have other batches.
  absl::StatusOr<std::shared_ptr<const TableEntry>> Ensure(const v1::TableSpec& spec, bool keep_settings = false);
  // Admin.SetTable, whose errors it has. Waits and logs as Ensure does.
  absl::StatusOr<v1::SetTableResponse> Set(const v1::SetTableRequest& request);
  // The same as Ensure for a table that a ps has accepted before: from a log, a checkpoint or another ps. The bounds of
  // its numbers are not checked again, and what this program does not know of it is left out, as it was then. Settings
  // that are newer become the table's, and soon those of owned shards; the others have records of their own.
  absl::Status Restore(v1::TableSpec spec);
  // SettingsUpdates::Prepare, for all tables. On the shard's executor.
  void PrepareShard(Shard* shard) { updates_.Prepare(*tables(), shard); }
  // Brings the tables' settings to owned shards that lack them, because they could not be written when they came. Does
  // not wait. About once a second.
  void UpdateShards() { updates_.BringLater(tables()); }

  // Makes one more shard with the parts of all tables, to follow its owner. RESOURCE_EXHAUSTED, and the shard gets
  // nothing, if that does not fit. REQUIRES: the shard has no role.
  absl::Status AddShard(ShardId shard);
  // Takes the role from a shard, and frees what it holds of all tables. REQUIRES: it has a role, and is not owned.
  void RemoveShard(ShardId shard);

  // What the tables may take.
  MemoryBudget& budget() { return budget_; }

  // All tables, by name, as they were made; those whose settings have changed since, as they are now, come behind. Also
  // what is in the log and not in tables() yet: a table that is being made, and settings that are being changed.
  std::vector<v1::TableSpec> specs() const;
  // The table of that name as it is now; nullopt if there is none.
  std::optional<v1::TableSpec> SpecOf(const std::string& name) const;
  // The name of a table. NOT_FOUND; UNAVAILABLE while this ps does not know the tables.
  absl::StatusOr<std::string> NameOf(TableId table) const;
  // The status of a call that names a table that is not here, as NameOf.
  absl::Status UnknownTable(TableId table) const;
  // The revisions of all tables added up (PushResponse.settings_revision), whose settings are seen from then on. Cheap.
  uint64_t settings_revision() const { return settings_revision_.load(std::memory_order_acquire); }
  // When the subscribers of a table are to be served; nullopt if there is no such table.
  std::optional<v1::Broadcast> BroadcastOf(TableId table) const;
  // Rows and bytes of all tables on this ps.
  std::pair<uint64_t, uint64_t> totals() const { return {totals_.rows.load(), totals_.bytes.load()}; }

  // Fills tables (but for their versions) and the server's table_bytes.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  enum class Origin { kWorker, kObserver, kAcceptedBefore };
  absl::StatusOr<std::shared_ptr<const TableEntry>> FindOrCreate(const v1::TableSpec& spec, Origin origin);
  // Logs and makes a table. `logged`: whether it is in all logs; one that is not yet is there all the same.
  absl::StatusOr<std::shared_ptr<TableEntry>> Create(const v1::TableSpec& spec, absl::Status* logged);
  // The settings of `spec`, which the table does not have, become its own: first those of the owned shards. `at_rest`:
  // what waits for the end of a step may be applied as it is, where steps end.
  absl::Status Change(const TableEntry& entry, const v1::TableSpec& spec, bool at_rest);
  // They become the table's alone. It is logged before.
  absl::Status UseSettings(const TableEntry& entry, const v1::TableSpec& spec);
  // Adds the revisions up again.
  void CountRevisions();
  // Logs a specification, which specs() has from before that until it is set to nothing: a checkpoint that is written
  // meanwhile supersedes the log, and a follower that begins gets what it lacks from there.
  absl::Status Log(const v1::TableSpec& spec);
  void SetLogged(std::optional<v1::TableSpec> spec);
  // Makes the table's parts on the adopted shards. It is logged before the first update that needs it.
  void AddToShards(TableEntry* entry);
  // The parts of a dense table, beside `shards`; nulls if it is none.
  std::vector<std::unique_ptr<DenseTable>> MakeParts(Table* table, std::span<const ShardId> shards) const;

  const Options options_;
  const ServingGate* const gate_;
  ShardSet* const shards_;
  CommitLog* const log_;
  SettingsUpdates updates_;  // Synchronises itself.
  Table::Totals totals_;     // Counted beside each table's: a walk over all would cost each push of new rows.
  MemoryBudget budget_;      // Synchronises itself.
  std::atomic<uint64_t> settings_revision_{0};

  Mutex create_mu_;  // Held while a table or shard is made: each shard has all tables. Taken before mu_.
  mutable Mutex mu_;
  std::shared_ptr<const TableMap> tables_ ABSL_GUARDED_BY(mu_) = std::make_shared<TableMap>();
  std::optional<v1::TableSpec> logged_ ABSL_GUARDED_BY(mu_);  // In the logs, or soon, and perhaps not in `tables_` yet.
};

}  // namespace lodestone::server
