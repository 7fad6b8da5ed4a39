#include "server/shard/shard_restore.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/shard/shard.h"

namespace lodestone::server {
namespace {

constexpr Version kVersionMax = (Version{1} << 62) - 1;  // There is room for more in a page's.

}  // namespace

absl::Status ShardRestore::Block(const v1::DenseBlock& header, std::span<const uint8_t> payload) {
  LODESTONE_ASSIGN_OR_RETURN(DenseTable* const table, contents_->FindDense(header.table()));
  return table->Restore(header, payload);
}

absl::Status ShardRestore::Rows(const v1::RowsTable& header) {
  LODESTONE_ASSIGN_OR_RETURN(EmbeddingTable* const table, contents_->FindRows(header.table()));
  return table->RestoreRows(header, contents_->id);
}

absl::Status ShardRestore::Page(const v1::RowsPage& header, std::span<const uint8_t> payload) {
  LODESTONE_ASSIGN_OR_RETURN(EmbeddingTable* const table, contents_->FindRows(header.table()));
  return table->RestorePage(header, payload);
}

absl::Status ShardRestore::Window(const v1::Window& window) {
  auto made = SequenceWindow::Make(window.newest(), window.applied());
  if (!made.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the window of worker incarnation ", window.worker(), " contradicts itself"));
  }
  if (!contents_->windows.try_emplace(window.worker(), *made).second) {
    return absl::InvalidArgumentError(
        absl::StrCat("the window of worker incarnation ", window.worker(), " is there twice"));
  }
  return absl::OkStatus();
}

absl::Status ShardRestore::Record(const v1::CheckpointRecord& record, std::span<const uint8_t> payload) {
  if (record.has_block()) return Block(record.block(), payload);
  if (record.has_page()) return Page(record.page(), payload);
  if (record.has_rows()) return Rows(record.rows());
  if (record.has_window()) return Window(record.window());
  if (record.has_settings()) return contents_->SetSettings(record.settings());
  if (record.has_steps()) return ShardSteps(contents_).Restore(record.steps());
  if (record.has_contribution()) return ShardSteps(contents_).RestorePending(record.contribution(), payload);
  return absl::InvalidArgumentError("the record is no block, rows, page, window, settings, steps or contribution");
}

absl::Status ShardRestore::Finish(Version version) {
  if (version > kVersionMax) {
    return absl::InvalidArgumentError(absl::StrCat("no shard has ever come to version ", version));
  }
  for (const auto& [id, table] : contents_->dense) LODESTONE_RETURN_IF_ERROR(table->CheckNoneAfter(version));
  for (const auto& [id, table] : contents_->rows) {
    LODESTONE_RETURN_IF_ERROR(table->PrepareRestored(contents_->id, version));
  }
  for (const auto& [id, table] : contents_->rows) table->CommitRestored(version);
  contents_->version.store(version, std::memory_order_release);
  return absl::OkStatus();
}

void ShardRestore::Abandon() {
  for (const auto& [id, table] : contents_->dense) table->Reset();
  for (const auto& [id, table] : contents_->rows) table->AbandonRestored();
  contents_->windows.clear();
  contents_->ResetSettings();
}

}  // namespace lodestone::server
