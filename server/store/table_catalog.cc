#include "server/store/table_catalog.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/config/table_check.h"
#include "common/telemetry/figures.h"
#include "server/shard/shard.h"
#include "server/store/commit_log.h"
#include "server/store/serving_gate.h"
#include "server/store/shard_set.h"
#include "server/store/table_entry.h"

namespace lodestone::server {
namespace {

// ALREADY_EXISTS, naming the fields, if the specification says something else than what exists.
absl::Status SpecConflict(const v1::TableSpec& existing, const v1::TableSpec& wanted) {
  const std::string differences = Differences(existing, wanted);
  if (differences.empty()) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("table `", wanted.name(), "` exists with another specification: ", differences));
}

// The table of `spec`; null if there is none.
absl::StatusOr<std::shared_ptr<const TableEntry>> FindIn(const TableMap& map, const v1::TableSpec& spec) {
  const auto found = map.find(TableIdOf(spec.name()));
  if (found == map.end()) return nullptr;
  if (found->second->table->name() != spec.name()) {
    return absl::AlreadyExistsError(absl::StrCat("the name `", spec.name(), "` hashes to the same id as table `",
                                                 found->second->table->name(), "`; choose another name"));
  }
  LODESTONE_RETURN_IF_ERROR(SpecConflict(found->second->table->spec(), spec));
  return found->second;
}

// A dense table of fewer elements is made by one thread, which takes a millisecond.
constexpr uint64_t kElementsPerThread = 1 << 18;

}  // namespace

std::shared_ptr<const TableMap> Catalog::tables() const {
  MutexLock lock(&mu_);
  return tables_;
}

absl::StatusOr<std::shared_ptr<TableEntry>> Catalog::Create(const v1::TableSpec& spec) {
  auto table = Table::Create(spec, options_.cluster_seed, shards_->size());
  if (!table.ok()) return table.status();
  auto entry = std::make_shared<TableEntry>();
  entry->table = *std::move(table);
  entry->table->counters().all_bytes = &table_bytes_;
  if (spec.guard().norm_max_factor() > 0) {
    entry->guard = std::make_unique<NormGuard>(spec.guard().norm_max_factor());
  }
  uint64_t bytes = 0;
  MemoryReservation room(&budget_);
  if (entry->table->is_dense()) {
    entry->dense.resize(shards_->size(), nullptr);
    for (const ShardId shard : shards_->adopted()) bytes += DenseTable::BytesNeeded(*entry->table, shard);
    LODESTONE_RETURN_IF_ERROR(room.Add(entry->table.get(), bytes));
  }
  LODESTONE_RETURN_IF_ERROR(AddToShards(entry.get()));
  entry->table->counters().AddBytes(bytes);
  return entry;
}

absl::Status Catalog::AddToShards(TableEntry* entry) {
  // Before the first update that needs it, in each log and for each follower.
  v1::LogRecord record;
  *record.mutable_table() = entry->table->spec();
  record.set_table_known(true);
  LODESTONE_RETURN_IF_ERROR(log_->AppendToAll(record));
  const std::vector<ShardId> shards = shards_->adopted();
  std::vector<std::unique_ptr<DenseTable>> parts = MakeParts(entry->table.get(), shards);
  const uint64_t now_ms = options_.time->NowMs();
  Countdown added(static_cast<int64_t>(shards.size()));
  for (size_t i = 0; i < shards.size(); ++i) {
    shards_->executors()[shards_->ExecutorOf(shards[i])].Submit([&, i] {
      const DenseTable* dense = shards_->Get(shards[i])->AddTable(entry->table.get(), now_ms, std::move(parts[i]));
      if (dense != nullptr) entry->dense[shards[i]] = dense;
      added.CountDown();
    });
  }
  added.Wait();
  return absl::OkStatus();
}

std::vector<std::unique_ptr<DenseTable>> Catalog::MakeParts(Table* table, std::span<const ShardId> shards) const {
  std::vector<std::unique_ptr<DenseTable>> parts(shards.size());
  if (!table->is_dense()) return parts;
  std::atomic<size_t> next{0};
  const auto make = [&] {
    for (size_t i = next++; i < shards.size(); i = next++) parts[i] = std::make_unique<DenseTable>(table, shards[i]);
  };
  std::vector<std::thread> threads;
  const size_t wanted = table->layout().elements < kElementsPerThread ? 1 : shards_->executors().size();
  while (threads.size() + 1 < std::min(wanted, shards.size())) threads.emplace_back(make);
  make();
  for (std::thread& thread : threads) thread.join();
  return parts;
}

absl::StatusOr<std::shared_ptr<const TableEntry>> Catalog::Find(const v1::TableSpec& spec) const {
  LODESTONE_RETURN_IF_ERROR(CheckKnown(spec));
  return FindIn(*tables(), spec);
}

absl::StatusOr<std::shared_ptr<const TableEntry>> Catalog::Ensure(const v1::TableSpec& spec) {
  LODESTONE_RETURN_IF_ERROR(CheckKnown(spec));
  return FindOrCreate(spec, Origin::kWorker);
}

absl::Status Catalog::Restore(v1::TableSpec spec) {
  spec.DiscardUnknownFields();
  return FindOrCreate(spec, Origin::kAcceptedBefore).status();
}

absl::StatusOr<std::shared_ptr<const TableEntry>> Catalog::FindOrCreate(const v1::TableSpec& spec, Origin origin) {
  MutexLock create_lock(&create_mu_);
  const std::shared_ptr<const TableMap> map = tables();
  LODESTONE_ASSIGN_OR_RETURN(std::shared_ptr<const TableEntry> found, FindIn(*map, spec));
  if (found != nullptr) return found;
  if (origin == Origin::kWorker) LODESTONE_RETURN_IF_ERROR(CheckTableSpec(spec));
  if (map->size() >= limits::kTablesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("this ps has ", map->size(), " tables, its limit"));
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<TableEntry> entry, Create(spec));
  auto extended = std::make_shared<TableMap>(*map);
  extended->emplace(entry->table->id(), entry);
  MutexLock lock(&mu_);
  tables_ = std::move(extended);
  return entry;
}

absl::Status Catalog::AddShard(ShardId shard) {
  MutexLock create_lock(&create_mu_);
  const std::shared_ptr<const TableMap> map = tables();
  MemoryReservation room(&budget_);
  for (const auto& [id, entry] : *map) {
    if (!entry->table->is_dense()) continue;
    LODESTONE_RETURN_IF_ERROR(room.Add(entry->table.get(), DenseTable::BytesNeeded(*entry->table, shard)));
  }
  shards_->Make(shard);
  const uint64_t now_ms = options_.time->NowMs();
  for (const auto& [id, entry] : *map) {
    shards_->Run(shard, [&, table = entry.get()](Shard* fresh) {
      const DenseTable* dense = fresh->AddTable(table->table.get(), now_ms);
      if (dense != nullptr) table->dense[shard] = dense;
    });
    if (!entry->table->is_dense()) continue;
    entry->table->counters().AddBytes(DenseTable::BytesNeeded(*entry->table, shard));
  }
  shards_->SetRole(shard, ShardRole::kFollowing);
  return absl::OkStatus();
}

void Catalog::RemoveShard(ShardId shard) {
  MutexLock create_lock(&create_mu_);
  const uint64_t now_ms = options_.time->NowMs();
  shards_->Run(shard, [&](Shard* gone) {
    shards_->SetRole(shard, ShardRole::kNone);
    gone->Free(now_ms);
  });
  for (const auto& [id, entry] : *tables()) {
    if (!entry->table->is_dense()) continue;
    entry->table->counters().AddBytes(-DenseTable::BytesNeeded(*entry->table, shard));
  }
}

std::vector<v1::TableSpec> Catalog::specs() const {
  const std::shared_ptr<const TableMap> map = tables();
  std::vector<v1::TableSpec> specs;
  for (const auto& [id, entry] : *map) specs.push_back(entry->table->spec());
  std::sort(specs.begin(), specs.end(), [](const auto& a, const auto& b) { return a.name() < b.name(); });
  return specs;
}

absl::StatusOr<std::string> Catalog::NameOf(TableId table) const {
  LODESTONE_RETURN_IF_ERROR(gate_->CheckReady());
  const std::shared_ptr<const TableMap> map = tables();
  const auto found = map->find(table);
  return found == map->end() ? UnknownTable(table) : absl::StatusOr<std::string>(found->second->table->name());
}

absl::Status Catalog::UnknownTable(TableId table) const {
  if (!shards_->owned().empty()) return absl::NotFoundError(absl::StrCat("unknown table id ", table));
  return absl::UnavailableError("this ps owns no shards now, and does not know the tables");
}

std::optional<v1::Broadcast> Catalog::BroadcastOf(TableId table) const {
  const std::shared_ptr<const TableMap> map = tables();
  const auto found = map->find(table);
  if (found == map->end()) return std::nullopt;
  return found->second->table->spec().broadcast();
}

std::pair<uint64_t, uint64_t> Catalog::totals() const {
  std::pair<uint64_t, uint64_t> totals;
  const std::shared_ptr<const TableMap> map = tables();  // A loop over *tables() would not keep it.
  for (const auto& [id, entry] : *map) {
    totals.first += entry->table->counters().rows.load(std::memory_order_relaxed);
    totals.second += entry->table->counters().bytes.load(std::memory_order_relaxed);
  }
  return totals;
}

void Catalog::FillStatus(v1::StatusResponse* status) const {
  status->mutable_server()->set_table_bytes(totals().second);
  status->mutable_server()->set_table_bytes_max(options_.memory_max_bytes);
  const std::shared_ptr<const TableMap> map = tables();
  for (const auto& [id, entry] : *map) {
    const Table& table = *entry->table;
    v1::TableStatus* out = status->add_tables();
    out->set_name(table.name());
    out->set_id(table.id());
    out->set_shape(table.ShapeText());
    out->set_optimizer(table.optimizer().name());
    out->set_bytes_max(table.spec().memory_max_bytes());
    table.counters().ForEachFigure([out](const char* name, uint64_t value) { SetFigure(name, value, out); });
  }
  std::sort(status->mutable_tables()->begin(), status->mutable_tables()->end(),
            [](const auto& a, const auto& b) { return a.name() < b.name(); });
}

}  // namespace lodestone::server
