// Collecting and restoring what a checkpoint keeps of a shard, all of it or one table.
#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/shard/shard.h"

namespace lodestone::server {
namespace {

constexpr Version kVersionMax = (Version{1} << 62) - 1;  // There is room for more in a page's.

template <typename Part>
void SortByTable(std::vector<Part>* parts) {
  std::sort(parts->begin(), parts->end(), [](const Part& a, const Part& b) { return a.table->id() < b.table->id(); });
}

absl::Status NoSuchTable(const char* kind, TableId table) {
  return absl::InvalidArgumentError(absl::StrCat("there is no ", kind, "table with id ", table));
}

}  // namespace

Shard::State Shard::CollectState(const Version* after) const {
  State state;
  state.shard = id_;
  state.version = version();
  state.term = term();
  if (after != nullptr) state.after = *after;
  for (const auto& [id, table] : dense_) state.dense.push_back({&table->table(), table->Collect(after)});
  for (const auto& [id, table] : rows_) {
    state.rows.push_back({&table->table(), table->layout(), table->CollectState(after)});
  }
  SortByTable(&state.dense);
  SortByTable(&state.rows);
  state.windows.assign(windows_.begin(), windows_.end());
  std::sort(state.windows.begin(), state.windows.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return state;
}

absl::Status Shard::RestoreBlock(const v1::DenseBlock& header, std::span<const uint8_t> payload) {
  const auto table = dense_.find(header.table());
  if (table == dense_.end()) return NoSuchTable("dense ", header.table());
  return table->second->Restore(header, payload);
}

absl::Status Shard::RestoreRows(const v1::RowsTable& header) {
  const auto table = rows_.find(header.table());
  if (table == rows_.end()) return NoSuchTable("embedding ", header.table());
  return table->second->RestoreRows(header, id_);
}

absl::Status Shard::RestorePage(const v1::RowsPage& header, std::span<const uint8_t> payload) {
  const auto table = rows_.find(header.table());
  if (table == rows_.end()) return NoSuchTable("embedding ", header.table());
  return table->second->RestorePage(header, payload);
}

absl::Status Shard::RestoreWindow(const v1::Window& window) {
  auto made = SequenceWindow::Make(window.newest(), window.applied());
  if (!made.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the window of worker incarnation ", window.worker(), " contradicts itself"));
  }
  if (!windows_.try_emplace(window.worker(), *made).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("the window of worker incarnation ", window.worker(), " is there twice"));
  }
  return absl::OkStatus();
}

absl::Status Shard::RestoreRecord(const v1::CheckpointRecord& record, std::span<const uint8_t> payload) {
  if (record.has_block()) return RestoreBlock(record.block(), payload);
  if (record.has_page()) return RestorePage(record.page(), payload);
  if (record.has_rows()) return RestoreRows(record.rows());
  if (record.has_window()) return RestoreWindow(record.window());
  return absl::InvalidArgumentError("the record is no block, rows, page or window");
}

absl::Status Shard::FinishRestore(Version version) {
  if (version > kVersionMax) {
    return absl::InvalidArgumentError(absl::StrCat("no shard has ever come to version ", version));
  }
  for (const auto& [id, table] : dense_) LODESTONE_RETURN_IF_ERROR(table->CheckNoneAfter(version));
  for (const auto& [id, table] : rows_) LODESTONE_RETURN_IF_ERROR(table->PrepareRestored(id_, version));
  for (const auto& [id, table] : rows_) table->CommitRestored(version);
  version_.store(version, std::memory_order_release);
  return absl::OkStatus();
}

void Shard::AbandonRestore() {
  for (const auto& [id, table] : dense_) table->Reset();
  for (const auto& [id, table] : rows_) table->AbandonRestored();
  windows_.clear();
}

void Shard::Reset(uint64_t now_ms) {
  DropStaged();
  AbandonRestore();  // Also what is left of a state that did not end.
  for (const auto& [id, table] : rows_) table->CommitRollback(0, now_ms);
  RestoreTerm(0);
  version_.store(0, std::memory_order_release);
}

absl::Status Shard::Stage(const v1::CheckpointRecord& record, std::span<const uint8_t> payload) {
  TableId table = 0;
  if (record.has_block()) {
    table = record.block().table();
  } else if (record.has_rows()) {
    table = record.rows().table();
  } else if (record.has_page()) {
    table = record.page().table();
  } else {
    return absl::InvalidArgumentError("the record is no block, rows or page");
  }
  if (staged_.has_value() && *staged_ != table) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are records of two tables, with ids ", *staged_, " and ", table));
  }
  const auto dense = dense_.find(table);
  const auto rows = rows_.find(table);
  if (record.has_block() ? dense == dense_.end() : rows == rows_.end()) {
    return NoSuchTable(record.has_block() ? "dense " : "embedding ", table);
  }
  staged_ = table;
  ++staged_count_;
  if (record.has_block()) return dense->second->Stage(record.block(), payload);
  if (record.has_rows()) return rows->second->RestoreRows(record.rows(), id_);
  return rows->second->RestorePage(record.page(), payload);
}

absl::Status Shard::StageRestored(const v1::CheckpointRecord& record, std::span<const uint8_t> payload) {
  absl::Status status = Stage(record, payload);
  if (!status.ok()) DropStaged();
  return status;
}

absl::Status Shard::Commit(TableId table, Version version, uint64_t now_ms) {
  LODESTONE_RETURN_IF_ERROR(CheckFollows(version));
  if (staged_.has_value() && *staged_ != table) {
    return absl::InvalidArgumentError(absl::StrCat("the records are of table id ", *staged_, ", not ", table));
  }
  if (const auto dense = dense_.find(table); dense != dense_.end()) {
    dense->second->CommitStaged(version);
  } else if (const auto rows = rows_.find(table); rows != rows_.end()) {
    // Pages may come from versions that this shard has not come to: it went back to a checkpoint once.
    LODESTONE_RETURN_IF_ERROR(rows->second->PrepareRestored(id_, std::numeric_limits<Version>::max()));
    rows->second->CommitRollback(version, now_ms);
  } else {
    return NoSuchTable("", table);
  }
  staged_.reset();
  staged_count_ = 0;
  version_.store(version, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status Shard::CommitRestored(TableId table, Version version, uint64_t now_ms) {
  absl::Status status = Commit(table, version, now_ms);
  if (!status.ok()) DropStaged();
  return status;
}

void Shard::DropStaged() {
  if (!staged_.has_value()) return;
  if (const auto dense = dense_.find(*staged_); dense != dense_.end()) dense->second->DropStaged();
  if (const auto rows = rows_.find(*staged_); rows != rows_.end()) rows->second->AbandonRestored();
  staged_.reset();
  staged_count_ = 0;
}

bool Shard::Holds(TableId table) const {
  const auto dense = dense_.find(table);
  return dense != dense_.end() ? !dense->second->empty() : rows_.contains(table);
}

}  // namespace lodestone::server
