#include "server/table/embedding_table.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/planted_defect.h"
#include "server/table/embedding_reader.h"
#include "server/table/embedding_restore.h"

namespace lodestone::server {

EmbeddingTable::EmbeddingTable(Table* table, uint64_t now_ms)
    : table_(table),
      settings_(&table->made()),
      rows_(PageLayout(*table)),
      policy_(table, settings_, rows_.layout(), now_ms) {
  CountBytes();
}

EmbeddingTable::~EmbeddingTable() = default;

void EmbeddingTable::SetSettings(const TableSettings* settings) {
  settings_ = settings;
  policy_.SetSettings(settings);
}

void EmbeddingTable::Read(std::span<const Wanted> wanted, uint64_t now_ms) { EmbeddingReader(wanted, now_ms).Run(); }

void EmbeddingTable::Apply(ByteView keys, ByteView gradients, size_t count, uint64_t now_ms, Version version,
                           Evictions* evictions, bool takes_new, bool ends_step, uint64_t delay) {
  const Update update{now_ms, version, evictions, takes_new};
  if (policy_.tracks_usage()) policy_.NoteTime(now_ms);
  const Optimizer::Step step = settings_->StepFor(updates_, {}, 0, delay);
  if (ends_step) ++updates_;
  rows_.ForEachBatch(keys, count, [&](const RowStore::Batch& batch) {
    ApplyBatch(batch, gradients.Take(batch.count * table_->dim() * sizeof(float)), step, update);
  });
  rows_.ContinueGrowth(count);  // Where few rows are new any more it would go on, and search twice, for long.
  CountBytes();
}

uint64_t EmbeddingTable::BytesFor(ByteView keys, size_t count) const {
  size_t rows = 0;
  rows_.ForEachBatch(keys, count, [&](const RowStore::Batch& batch) {
    for (size_t i = 0; i < batch.count; ++i) {
      if (batch.rows[i] == kNoRow && policy_.MayAdmit(LoadAt<Key>(batch.keys, i))) ++rows;
    }
  });
  rows = std::min(rows, policy_.rows_max() - std::min(policy_.rows_max(), rows_.size()));
  if (rows == 0) return 0;
  const uint64_t usage = policy_.tracks_usage() ? rows_.PagesFor(rows) * layout().rows() * sizeof(Usage) : 0;
  return rows_.BytesFor(rows) + usage;
}

uint64_t EmbeddingTable::BytesAtMost(const Table& table, size_t count) {
  constexpr uint64_t kIndexBytesPerRow = 32;
  constexpr uint64_t kIndexBytesLeast = 1024;
  if (count == 0) return 0;
  const PageLayout layout(table);
  const uint64_t page = RowStore::PageBytes(layout) + layout.rows() * (sizeof(Usage) + sizeof(RowId));
  return ((count >> layout.rows_log2) + 2) * page + count * kIndexBytesPerRow + kIndexBytesLeast;
}

void EmbeddingTable::ApplyBatch(const RowStore::Batch& batch, ByteView gradients, const Optimizer::Step& step,
                                const Update& update) {
  const size_t row_bytes = table_->dim() * sizeof(float);
  const uint8_t* const together = gradients.contiguous();
  if (together == nullptr) straddling_rows_.resize(RowStore::kBatchRows * row_bytes);
  RowUpdate found[RowStore::kBatchRows];
  size_t waiting = 0;  // Rows in `found`, not updated yet.
  for (size_t i = 0; i < batch.count; ++i) {
    const uint8_t* const gradient = together != nullptr
                                        ? together + i * row_bytes
                                        : RowStore::TakeBytes(row_bytes, &gradients, &straddling_rows_[i * row_bytes]);
    RowId row = batch.rows[i];
    if (row == kNoRow || batch.erased != rows_.erased()) {
      // A new row may evict one that waits.
      if (rows_.size() >= policy_.rows_max()) UpdateRows(step, {found, std::exchange(waiting, 0)});
      row = FindOrInsert(LoadAt<Key>(batch.keys, i), update);
      if (row == kNoRow) continue;
    }
    found[waiting++] = {gradient, rows_.Touch(row, update.version)};
    if (policy_.tracks_usage()) policy_.Use(row, update.now_ms);
  }
  UpdateRows(step, {found, waiting});
}

void EmbeddingTable::UpdateRows(const Optimizer::Step& step, std::span<const RowUpdate> rows) const {
  const size_t dim = table_->dim();
  const float norm_max = settings_->spec.optimizer().clip().row_norm();
  if (norm_max <= 0) return settings_->optimizer->UpdateRows(step, dim, rows);
  for (const RowUpdate& row : rows) {
    Optimizer::Step clipped = step;
    clipped.gradient_scale = Table::ScaleToNorm(ByteView(row.gradient, dim * sizeof(float)), step.clip_value, norm_max);
    settings_->optimizer->UpdateRows(clipped, dim, {&row, 1});
  }
}

RowId EmbeddingTable::FindOrInsert(Key key, const Update& update) {
  const RowId row = rows_.Find(key);
  if (row != kNoRow) return row;
  if (!update.takes_new) {
    table_->counters().turned_away.fetch_add(1, std::memory_order_relaxed);
    return kNoRow;
  }
  if (policy_.Admit(key, update.version)) return Insert(key, update);
  table_->counters().not_admitted.fetch_add(1, std::memory_order_relaxed);
  return kNoRow;
}

RowId EmbeddingTable::Insert(Key key, const Update& update) {
  if (rows_.size() >= policy_.rows_max()) MakeRoom(update);
  const auto [row, floats] = rows_.Insert(key, update.version);
  table_->InitializeRow(key, floats);
  if (table_->state_layout().FloatsFor(table_->dim()) > 0) {
    settings_->optimizer->InitializeState(floats + table_->dim(), table_->dim());
  }
  if (policy_.tracks_usage()) policy_.UseNew(row, update.now_ms);
  return row;
}

void EmbeddingTable::MakeRoom(const Update& update) {
  Evictions* const evictions = update.evictions;
  if (evictions != nullptr && evictions->replays()) {
    const EvictedKeys* const noted = evictions->Next(table_->id());
    if (noted != nullptr && !EvictKeys(noted->keys, update.version)) {
      evictions->Fail(absl::StrCat("table `", table_->name(), "`: a row that made room is not there in the replay"));
    }
    return;
  }
  std::vector<Key> keys = policy_.ColdestKeys(rows_, update.now_ms, rows_.erased());
  EvictKeys(keys, update.version);
  if (evictions != nullptr) evictions->Note({table_->id(), std::move(keys)});
}

bool EmbeddingTable::EvictKeys(std::span<const Key> keys, Version version) {
  for (const Key key : keys) {
    const RowId row = rows_.Find(key);
    if (row == kNoRow) return false;
    rows_.Erase(row, version);
    NoteEvicted(key, version);
  }
  return true;
}

void EmbeddingTable::NoteEvicted(Key key, Version version) {
  evicted_.emplace_back(version, key);
  if (evicted_.size() > limits::kEvictedKeysRemembered) {
    evictions_known_since_ = evicted_.front().first;
    evicted_.pop_front();
  }
  table_->counters().evicted.fetch_add(1, std::memory_order_relaxed);
}

bool EmbeddingTable::EvictExpired(uint64_t now_ms, Version version, Evictions* evictions, size_t rows_max) {
  std::vector<Key> keys = policy_.SweptKeys(rows_, now_ms, rows_max);
  if (keys.empty()) return false;
  EvictKeys(keys, version);
  CountBytes();
  if (evictions != nullptr) evictions->Note({table_->id(), std::move(keys)});
  return true;
}

absl::Status EmbeddingTable::ReplayExpiry(std::span<const Key> keys, Version version) {
  const bool all = EvictKeys(keys, version);
  CountBytes();
  if (all) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("table `", table_->name(), "`: an expired row is not there in the replay"));
}

std::optional<EmbeddingTable::Snapshot> EmbeddingTable::Collect(const Version* after) const {
  if (after != nullptr && *after < evictions_known_since_) return std::nullopt;
  Snapshot snapshot;
  rows_.SharePages(after, [&](uint32_t, const RowStore::Page& page) {
    snapshot.pages.push_back({page.buffer, page.version});
  });
  if (after == nullptr) return snapshot;
  for (auto it = evicted_.rbegin(); it != evicted_.rend() && it->first > *after; ++it) {
    snapshot.evicted.push_back(it->second);
  }
  return snapshot;
}

EmbeddingTable::State EmbeddingTable::CollectState(const Version* after) const {
  // A page's usage is written as it lies here.
  static_assert(std::endian::native == std::endian::little && sizeof(Usage) == 2 * sizeof(uint32_t));
  State state;
  state.updates = updates_;
  state.made_ms = policy_.made_ms();
  state.pages_total = static_cast<uint32_t>(rows_.pages().size());
  if (after == nullptr) state.pages.reserve(rows_.pages().size());
  rows_.SharePages(after, [&](uint32_t p, const RowStore::Page& page) {
    state.pages.push_back({p, page.buffer, page.version});
  });
  if (policy_.tracks_usage()) {
    const uint32_t rows = layout().rows();
    state.usage.resize(state.pages.size() * rows);
    for (size_t i = 0; i < state.pages.size(); ++i) {
      std::copy_n(policy_.UsageOf(state.pages[i].index), rows, &state.usage[i * rows]);
    }
  }
  state.candidates.assign(policy_.candidates().begin(), policy_.candidates().end());
  return state;
}

EmbeddingRestore& EmbeddingTable::Restoring() {
  if (restoring_ == nullptr) restoring_ = std::make_unique<EmbeddingRestore>(table_, layout());
  return *restoring_;
}

absl::Status EmbeddingTable::RestoreRows(const v1::RowsTable& header, ShardId shard) {
  return Restoring().AddHeader(header, shard);
}

absl::Status EmbeddingTable::RestorePage(const v1::RowsPage& header, std::span<const uint8_t> payload) {
  return Restoring().AddPage(header, payload);
}

absl::Status EmbeddingTable::PrepareRestored(ShardId shard, Version version) {
  return restoring_ == nullptr ? absl::OkStatus() : restoring_->Prepare(shard, version);
}

void EmbeddingTable::AbandonRestored() { restoring_.reset(); }

void EmbeddingTable::CommitRestored(Version version) {
  evictions_known_since_ = version;
  if (restoring_ == nullptr) return;
  LODESTONE_CHECK(rows_.pages().empty());
  updates_ = restoring_->updates();
  rows_ = restoring_->TakeRows();
  policy_ = restoring_->TakePolicy(settings_);
  restoring_.reset();
  CountBytes();
}

void EmbeddingTable::CommitRollback(Version version, uint64_t now_ms) {
  if (Planted(Defect::kRollbackKeepsRows)) {
    AbandonRestored();
    return rows_.StampAll(version);
  }
  updates_ = 0;
  rows_ = RowStore(PageLayout(*table_));
  policy_ = EvictionPolicy(table_, settings_, layout(), now_ms);
  evicted_.clear();
  CommitRestored(version);
  policy_.KeepForNow();
  rows_.StampAll(version);
  CountBytes();
}

void EmbeddingTable::CountBytes() {
  const uint64_t bytes = rows_.bytes() + policy_.bytes();
  Table::Counters& counters = table_->counters();
  counters.AddBytes(bytes - counted_bytes_);  // Wraps to a subtraction if it shrank.
  counters.AddRows(rows_.size() - counted_rows_);
  counted_bytes_ = bytes;
  counted_rows_ = rows_.size();
}

}  // namespace lodestone::server
