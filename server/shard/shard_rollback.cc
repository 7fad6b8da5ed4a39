#include "server/shard/shard_rollback.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/shard/shard.h"

namespace lodestone::server {

absl::Status ShardRollback::Stage(const v1::CheckpointRecord& record, std::span<const uint8_t> payload) {
  absl::Status status = StageRecord(record, payload);
  if (!status.ok()) Drop();
  return status;
}

absl::Status ShardRollback::StageRecord(const v1::CheckpointRecord& record, std::span<const uint8_t> payload) {
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
  if (table_.has_value() && *table_ != table) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are records of two tables, with ids ", *table_, " and ", table));
  }
  if (record.has_block()) {
    LODESTONE_ASSIGN_OR_RETURN(DenseTable* const dense, contents_->FindDense(table));
    table_ = table;
    ++count_;
    return dense->Stage(record.block(), payload);
  }
  LODESTONE_ASSIGN_OR_RETURN(EmbeddingTable* const rows, contents_->FindRows(table));
  table_ = table;
  ++count_;
  if (record.has_rows()) return rows->RestoreRows(record.rows(), contents_->id);
  return rows->RestorePage(record.page(), payload);
}

absl::Status ShardRollback::Commit(TableId table, Version version, uint64_t now_ms) {
  absl::Status status = CommitTable(table, version, now_ms);
  if (!status.ok()) Drop();
  return status;
}

absl::Status ShardRollback::CommitTable(TableId table, Version version, uint64_t now_ms) {
  LODESTONE_RETURN_IF_ERROR(contents_->CheckFollows(version));
  if (table_.has_value() && *table_ != table) {
    return absl::InvalidArgumentError(absl::StrCat("the records are of table id ", *table_, ", not ", table));
  }
  if (const auto dense = contents_->dense.find(table); dense != contents_->dense.end()) {
    dense->second->CommitStaged(version);
  } else if (const auto rows = contents_->rows.find(table); rows != contents_->rows.end()) {
    // Pages may come from versions that this shard has not come to: it went back to a checkpoint once.
    LODESTONE_RETURN_IF_ERROR(rows->second->PrepareRestored(contents_->id, std::numeric_limits<Version>::max()));
    rows->second->CommitRollback(version, now_ms);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("there is no table with id ", table));
  }
  if (const auto steps = contents_->steps.find(table); steps != contents_->steps.end()) {
    steps->second->EndBegunSteps(now_ms);
  }
  table_.reset();
  count_ = 0;
  contents_->version.store(version, std::memory_order_release);
  return absl::OkStatus();
}

void ShardRollback::Drop() {
  if (!table_.has_value()) return;
  if (const auto dense = contents_->dense.find(*table_); dense != contents_->dense.end()) dense->second->DropStaged();
  if (const auto rows = contents_->rows.find(*table_); rows != contents_->rows.end()) rows->second->AbandonRestored();
  table_.reset();
  count_ = 0;
}

}  // namespace lodestone::server
