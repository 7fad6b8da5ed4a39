#include "server/shard/shard.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace lodestone::server {

const DenseTable* Shard::AddTable(Table* table, uint64_t now_ms) {
  if (table->is_dense()) {
    return dense_.emplace(table->id(), std::make_unique<DenseTable>(table, id_)).first->second.get();
  }
  rows_.emplace(table->id(), std::make_unique<EmbeddingTable>(table, now_ms));
  return nullptr;
}

absl::StatusOr<Shard::PushResult> Shard::Push(Incarnation worker, Sequence sequence, std::span<const PushPart> parts,
                                              uint64_t now_ms, Evictions* evictions) {
  SequenceWindow& window = windows_[worker];
  switch (window.Check(sequence)) {
    case SequenceWindow::Verdict::kDuplicate:
      return PushResult{version(), true};
    case SequenceWindow::Verdict::kTooOld:
      return absl::OutOfRangeError(absl::StrCat("push sequence ", sequence, " on shard ", id_,
                                                " is older than the window of ", limits::kSequenceWindow,
                                                " before the worker's newest, ", window.newest()));
    case SequenceWindow::Verdict::kNew:
      break;
  }
  const Version next = version() + 1;
  ApplyParts(parts, now_ms, next, evictions);
  window.Mark(sequence);
  version_.store(next, std::memory_order_release);
  return PushResult{next, false};
}

void Shard::ApplyParts(std::span<const PushPart> parts, uint64_t now_ms, Version version, Evictions* evictions) {
  for (const PushPart& part : parts) {
    if (part.table->is_dense()) {
      DenseTable& table = *dense_.find(part.table->id())->second;
      ByteView gradients = part.gradients;
      for (const BlockIndex block : part.blocks) {
        table.Apply(block, gradients.Take(part.table->layout().ElementsOf(block) * sizeof(float)), version);
      }
    } else {
      rows_.find(part.table->id())
          ->second->Apply(part.keys, part.gradients, part.row_count, now_ms, version, evictions);
    }
  }
}

void Shard::Prefetch(std::span<const PushPart> parts) const {
  for (const PushPart& part : parts) {
    if (!part.table->is_dense()) rows_.find(part.table->id())->second->Prefetch(part.keys, part.row_count);
  }
}

void Shard::BeginTerm(uint64_t term) {
  LODESTONE_CHECK(term > term_.load() && version() > 0);
  former_term_ = {term_.load(), version() - 1};
  term_.store(term, std::memory_order_relaxed);
}

void Shard::RestoreTerm(uint64_t term) {
  former_term_.reset();
  term_.store(term, std::memory_order_relaxed);
}

bool Shard::Includes(uint64_t term, Version version) const {
  if (term == this->term()) return version <= this->version();
  return former_term_.has_value() && former_term_->first == term && version <= former_term_->second;
}

absl::Status Shard::CheckFollows(Version logged) const {
  if (logged == version() + 1) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("shard ", id_, " is at version ", version(),
                                          " and the log goes on with version ", logged,
                                          ": updates between them are missing"));
}

absl::Status Shard::ReplayPush(Version logged, Incarnation worker, Sequence sequence, std::span<const PushPart> parts,
                               uint64_t now_ms, Evictions* evictions) {
  DropStaged();
  LODESTONE_RETURN_IF_ERROR(CheckFollows(logged));
  const absl::StatusOr<PushResult> result = Push(worker, sequence, parts, now_ms, evictions);
  LODESTONE_RETURN_IF_ERROR(result.status());
  const std::string what = absl::StrCat("shard ", id_, " version ", logged);
  if (result->duplicate) {
    return absl::DataLossError(
        absl::StrCat(what, ": the push ", sequence, " of worker incarnation ", worker, " is logged twice"));
  }
  return Annotate(evictions->Finish(), what);
}

absl::Status Shard::ReplayExpiry(Version logged, std::span<const EvictedKeys> evicted) {
  DropStaged();
  LODESTONE_RETURN_IF_ERROR(CheckFollows(logged));
  for (const EvictedKeys& group : evicted) {
    const auto table = rows_.find(group.table);
    if (table == rows_.end()) {
      return absl::DataLossError(
          absl::StrCat("shard ", id_, " version ", logged, ": rows of the unknown table id ", group.table, " expired"));
    }
    LODESTONE_RETURN_IF_ERROR(table->second->ReplayExpiry(group.keys, logged));
  }
  version_.store(logged, std::memory_order_release);
  return absl::OkStatus();
}

Version Shard::Read(const Table& table, ByteView keys, size_t count, uint64_t now_ms, float* dst) {
  RowsOf(table)->Read(keys, count, now_ms, dst);
  return version();
}

void Shard::ForgetWorkersBut(std::span<const Incarnation> keep) {
  absl::erase_if(windows_,
                 [keep](const auto& window) { return !std::binary_search(keep.begin(), keep.end(), window.first); });
}

bool Shard::EvictExpired(uint64_t now_ms, Evictions* evictions) {
  const Version next = version() + 1;
  bool any = false;
  for (auto& [id, table] : rows_) any |= table->EvictExpired(now_ms, next, evictions);
  if (any) version_.store(next, std::memory_order_release);
  return any;
}

std::optional<Shard::Snapshot> Shard::Collect(std::span<const Table* const> tables, const Version* after) const {
  Snapshot snapshot;
  snapshot.shard = id_;
  snapshot.version = version();
  for (const Table* table : tables) {
    if (table->is_dense()) {
      snapshot.dense.push_back({table, dense_.find(table->id())->second->Collect(after)});
    } else {
      const EmbeddingTable& rows = *rows_.find(table->id())->second;
      auto content = rows.Collect(after);
      if (!content.has_value()) return std::nullopt;
      snapshot.rows.push_back({table, rows.layout(), *std::move(content)});
    }
  }
  return snapshot;
}

}  // namespace lodestone::server
