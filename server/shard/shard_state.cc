// Collecting and restoring what a checkpoint keeps of a shard.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "server/shard/shard.h"

namespace lodestone {
namespace {

template <typename Part>
void SortByTable(std::vector<Part>* parts) {
  std::sort(parts->begin(), parts->end(), [](const Part& a, const Part& b) { return a.table->id() < b.table->id(); });
}

absl::Status NoSuchTable(const char* kind, TableId table) {
  return absl::InvalidArgumentError(absl::StrCat("there is no ", kind, " table with id ", table));
}

}  // namespace

Shard::State Shard::CollectState(const Version* after) const {
  State state;
  state.shard = id_;
  state.version = version();
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
  if (table == dense_.end()) return NoSuchTable("dense", header.table());
  return table->second->Restore(header, payload);
}

absl::Status Shard::RestoreRows(const v1::RowsTable& header) {
  const auto table = rows_.find(header.table());
  if (table == rows_.end()) return NoSuchTable("embedding", header.table());
  return table->second->RestoreRows(header, id_);
}

absl::Status Shard::RestorePage(const v1::RowsPage& header, std::span<const uint8_t> payload) {
  const auto table = rows_.find(header.table());
  if (table == rows_.end()) return NoSuchTable("embedding", header.table());
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

absl::Status Shard::FinishRestore(Version version) {
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

}  // namespace lodestone
