#include "server/store/memory_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/table/table.h"

namespace lodestone::server {
namespace {

constexpr uint64_t kSampleShare = 64;  // Of the limit: the process is looked at again when tables have grown by it.

}  // namespace

bool MemoryBudget::Bounds(const Table& table) const { return bytes_max_ > 0 || table.spec().memory_max_bytes() > 0; }

void MemoryBudget::Sample() {
  if (process_bytes_ == nullptr || bytes_max_ == 0) return;
  const uint64_t tables = table_bytes_();
  const uint64_t process = process_bytes_();
  sampled_table_bytes_.store(tables, std::memory_order_relaxed);
  other_bytes_.store(process > tables ? process - tables : 0, std::memory_order_relaxed);
}

void MemoryBudget::SampleIfGrown() {
  if (table_bytes_() > sampled_table_bytes_.load(std::memory_order_relaxed) + bytes_max_ / kSampleShare) Sample();
}

uint64_t MemoryBudget::tables_bytes_max() const {
  return bytes_max_ - std::min(other_bytes_.load(std::memory_order_relaxed), bytes_max_ / 2);
}

absl::Status MemoryBudget::Reserve(Table* table, uint64_t bytes, uint64_t spare) {
  SampleIfGrown();
  ReserveAnyway(table, bytes);  // Of two at a time that only fit alone, none may get room; never both.
  absl::Status status = Check(*table, bytes, spare);
  if (!status.ok()) Release(table, bytes);
  return status;
}

void MemoryBudget::ReserveAnyway(Table* table, uint64_t bytes) {
  reserved_.fetch_add(bytes);
  table->counters().reserved.fetch_add(bytes);
}

void MemoryBudget::Release(Table* table, uint64_t bytes) {
  reserved_.fetch_sub(bytes);
  table->counters().reserved.fetch_sub(bytes);
}

absl::Status MemoryBudget::Check(const Table& table, uint64_t bytes, uint64_t spare) const {
  const uint64_t table_max = table.spec().memory_max_bytes();
  const uint64_t with_table = table.counters().bytes.load() + table.counters().reserved.load();
  if (table_max > 0 && with_table + spare > table_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "table `", table.name(), "` takes ", with_table - bytes, " bytes on this ps and needs ", bytes,
        " more, over its memory_max_bytes of ", table_max,
        "; raise that, bound the rows by eviction.rows_max, or turn new keys away by admission.when_full"));
  }
  if (bytes_max_ == 0) return absl::OkStatus();
  const uint64_t total = table_bytes_() + reserved_.load();
  const uint64_t tables_max = tables_bytes_max();
  if (total + spare <= tables_max) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the tables of this ps take ", total - bytes, " bytes and table `", table.name(), "` needs ", bytes,
      " more, over the ", tables_max, " that the rest of the process leaves of server.memory_max_bytes of ", bytes_max_,
      "; rows that exist are updated, new ones are not made"));
}

absl::Status MemoryReservation::Add(Table* table, uint64_t bytes, uint64_t spare) {
  if (bytes == 0 || !budget_->Bounds(*table)) return absl::OkStatus();
  LODESTONE_RETURN_IF_ERROR(budget_->Reserve(table, bytes, spare));
  parts_.emplace_back(table, bytes);
  return absl::OkStatus();
}

void MemoryReservation::AddAnyway(Table* table, uint64_t bytes) {
  if (bytes == 0 || !budget_->Bounds(*table)) return;
  budget_->ReserveAnyway(table, bytes);
  parts_.emplace_back(table, bytes);
}

void MemoryReservation::Release() {
  for (const auto& [table, bytes] : parts_) budget_->Release(table, bytes);
  parts_.clear();
}

}  // namespace lodestone::server
