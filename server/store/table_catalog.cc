#include "server/store/table_catalog.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/telemetry/figures.h"
#include "google/protobuf/util/message_differencer.h"

namespace lodestone::server {
namespace {

// The specification says something else than what exists: which fields.
absl::Status SpecConflict(const v1::TableSpec& existing, const v1::TableSpec& wanted) {
  std::string differences;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.set_message_field_comparison(google::protobuf::util::MessageDifferencer::EQUIVALENT);
  differencer.ReportDifferencesToString(&differences);
  if (differencer.Compare(existing, wanted)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("table `", wanted.name(), "` exists with another specification: ", differences));
}

}  // namespace

std::shared_ptr<const TableMap> Catalog::tables() const {
  MutexLock lock(&mu_);
  return tables_;
}

absl::StatusOr<std::shared_ptr<TableEntry>> Catalog::Create(
    const v1::TableSpec& spec, std::span<const ShardId> owned,
    const std::function<absl::Status(TableEntry*)>& add_to_shards) const {
  auto table = Table::Create(spec, cluster_seed_, shards_);
  if (!table.ok()) return table.status();
  auto entry = std::make_shared<TableEntry>();
  entry->table = *std::move(table);
  if (spec.guard().norm_max_factor() > 0) {
    entry->guard = std::make_unique<NormGuard>(spec.guard().norm_max_factor());
  }
  uint64_t bytes = 0;
  if (entry->table->is_dense()) {
    entry->dense.resize(shards_, nullptr);
    for (const ShardId shard : owned) bytes += DenseTable::BytesNeeded(*entry->table, shard);
    LODESTONE_RETURN_IF_ERROR(CheckMemory(*entry->table, bytes));
  }
  LODESTONE_RETURN_IF_ERROR(add_to_shards(entry.get()));
  entry->table->counters().bytes.fetch_add(bytes, std::memory_order_relaxed);
  return entry;
}

absl::StatusOr<std::shared_ptr<const TableEntry>> Catalog::Ensure(
    const v1::TableSpec& spec, std::span<const ShardId> owned,
    const std::function<absl::Status(TableEntry*)>& add_to_shards) {
  MutexLock create_lock(&create_mu_);
  const std::shared_ptr<const TableMap> map = tables();
  const auto found = map->find(TableIdOf(spec.name()));
  if (found != map->end()) {
    if (found->second->table->name() != spec.name()) {
      return absl::AlreadyExistsError(absl::StrCat("the name `", spec.name(), "` hashes to the same id as table `",
                                                   found->second->table->name(), "`; choose another name"));
    }
    LODESTONE_RETURN_IF_ERROR(SpecConflict(found->second->table->spec(), spec));
    return found->second;
  }
  if (map->size() >= limits::kTablesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("this ps has ", map->size(), " tables, its limit"));
  }
  LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<TableEntry> entry, Create(spec, owned, add_to_shards));
  auto extended = std::make_shared<TableMap>(*map);
  extended->emplace(entry->table->id(), entry);
  MutexLock lock(&mu_);
  tables_ = std::move(extended);
  return entry;
}

absl::Status Catalog::Extend(ShardId shard, const std::function<void(TableEntry*)>& add_to_shard) {
  MutexLock create_lock(&create_mu_);
  const std::shared_ptr<const TableMap> map = tables();
  uint64_t sum = 0;
  for (const auto& [id, entry] : *map) {
    if (!entry->table->is_dense()) continue;
    sum += DenseTable::BytesNeeded(*entry->table, shard);
    LODESTONE_RETURN_IF_ERROR(CheckMemory(*entry->table, sum));
  }
  for (const auto& [id, entry] : *map) {
    add_to_shard(entry.get());
    if (!entry->table->is_dense()) continue;
    entry->table->counters().bytes.fetch_add(DenseTable::BytesNeeded(*entry->table, shard), std::memory_order_relaxed);
  }
  return absl::OkStatus();
}

uint64_t Catalog::TableBytes() const {
  const std::shared_ptr<const TableMap> map = tables();  // A loop over *tables() would not keep it.
  uint64_t bytes = 0;
  for (const auto& [id, entry] : *map) bytes += entry->table->counters().bytes.load(std::memory_order_relaxed);
  return bytes;
}

absl::Status Catalog::CheckMemory(const Table& table, uint64_t more_bytes) const {
  const uint64_t table_max = table.spec().memory_max_bytes();
  const uint64_t table_bytes = table.counters().bytes.load(std::memory_order_relaxed);
  if (table_max > 0 && table_bytes + more_bytes > table_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "table `", table.name(), "` takes ", table_bytes, " bytes on this ps and needs ", more_bytes,
        " more, over its memory_max_bytes of ", table_max, "; raise that, or bound the rows by eviction.rows_max"));
  }
  if (memory_max_bytes_ == 0) return absl::OkStatus();
  const uint64_t total = TableBytes();
  if (total + more_bytes <= memory_max_bytes_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the tables of this ps take ", total, " bytes and table `",
                                                   table.name(), "` needs ", more_bytes,
                                                   " more, over server.memory_max_bytes of ", memory_max_bytes_));
}

void Catalog::FillStatus(v1::StatusResponse* status) const {
  status->mutable_server()->set_table_bytes(TableBytes());
  status->mutable_server()->set_table_bytes_max(memory_max_bytes_);
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
