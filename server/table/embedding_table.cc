#include "server/table/embedding_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/random.h"
#include "common/wire/message.h"
#include "server/table/embedding_restoring.h"
#include "server/table/prefetch.h"

namespace lodestone::server {
namespace {

constexpr uint64_t kTickMs = 16;  // Resolution of last-used stamps: 2^32 of them are two years.
constexpr uint64_t kAdmissionStream = 0x61646d6974ull;
constexpr size_t kEvictedShare = 16;  // A full table evicts this part of its rows at once.

size_t RowsMax(const Table& table) {
  const uint64_t rows_max = table.spec().embedding().eviction().rows_max();
  if (rows_max == 0) return SIZE_MAX;
  return rows_max / table.shards() + (rows_max % table.shards() != 0);
}

// The next `bytes` of `view`: where they lie, or, if they do not lie together, copied to `scratch`.
const uint8_t* TakeBytes(size_t bytes, ByteView* view, uint8_t* scratch) {
  const ByteView taken = view->Take(bytes);
  if (taken.contiguous() != nullptr) return taken.contiguous();
  taken.CopyTo(scratch);
  return scratch;
}

}  // namespace

EmbeddingTable::EmbeddingTable(Table* table, uint64_t now_ms)
    : table_(table),
      layout_(*table),
      track_usage_(table->spec().embedding().eviction().ttl_ms() > 0 ||
                   table->spec().embedding().eviction().rows_max() > 0),
      rows_max_(RowsMax(*table)),
      made_ms_(now_ms) {
  CountBytes();
}

EmbeddingTable::~EmbeddingTable() = default;

void EmbeddingTable::Prefetch(ByteView keys, size_t count) const {
  if (count > kBatchRows) return;
  const ByteView::Run run = keys.front();
  count = std::min(count, run.size / sizeof(Key));
  for (size_t i = 0; i < count; ++i) index_.Prepare(LoadAt<Key>(run.data, i));
}

template <typename Visit>
void EmbeddingTable::ForEachBatch(ByteView keys, size_t count, const Visit& visit) {
  Batch batch;
  for (; batch.begin < count; batch.begin += batch.count) {
    batch.count = std::min(kBatchRows, count - batch.begin);
    batch.keys = TakeBytes(batch.count * sizeof(Key), &keys, batch.straddling);
    FindRows(&batch);
    Prefetch(keys, std::min(kBatchRows, count - batch.begin - batch.count));  // The next batch's.
    visit(batch);
  }
}

void EmbeddingTable::FindRows(Batch* batch) const {
  // Copies, which the compiler knows not to change when the batch is written.
  const PageLayout layout = layout_;
  const Page* const pages = pages_.data();
  const uint8_t* const keys = batch->keys;
  const size_t count = batch->count;
  uint32_t homes[kBatchRows];
  for (size_t i = 0; i < count; ++i) homes[i] = index_.Prepare(LoadAt<Key>(keys, i));
  for (size_t i = 0; i < count; ++i) {
    const RowId row = index_.Find(LoadAt<Key>(keys, i), homes[i]);
    batch->rows[i] = row;
    if (row == kNoRow) continue;
    const BufferRef& page = pages[row >> layout.rows_log2].buffer;
    const uint32_t place = row & (layout.rows() - 1);
    PrefetchRow(layout.Row(page, place), layout.row_floats * sizeof(float));
    __builtin_prefetch(&layout.Changed(page)[place]);
  }
  batch->evictions = evictions_;
}

void EmbeddingTable::Apply(ByteView keys, ByteView gradients, size_t count, uint64_t now_ms, Version version,
                           Evictions* evictions) {
  const Update update{now_ms, version, evictions};
  const Optimizer::Step step = table_->StepFor(updates_++, {}, 0);
  ForEachBatch(keys, count, [&](const Batch& batch) {
    ApplyBatch(batch, gradients.Take(batch.count * table_->dim() * sizeof(float)), step, update);
  });
  CountBytes();
}

void EmbeddingTable::ApplyBatch(const Batch& batch, ByteView gradients, const Optimizer::Step& step,
                                const Update& update) {
  const size_t row_bytes = table_->dim() * sizeof(float);
  const uint8_t* const together = gradients.contiguous();
  if (together == nullptr) straddling_rows_.resize(kBatchRows * row_bytes);
  RowUpdate found[kBatchRows];
  size_t waiting = 0;  // Rows in `found`, not updated yet.
  for (size_t i = 0; i < batch.count; ++i) {
    const uint8_t* const gradient = together != nullptr
                                        ? together + i * row_bytes
                                        : TakeBytes(row_bytes, &gradients, &straddling_rows_[i * row_bytes]);
    RowId row = batch.rows[i];
    if (row == kNoRow || batch.evictions != evictions_) {
      // A new row may evict one that waits.
      if (index_.size() >= rows_max_) UpdateRows(step, {found, std::exchange(waiting, 0)});
      row = FindOrInsert(LoadAt<Key>(batch.keys, i), update);
      if (row == kNoRow) continue;
    }
    found[waiting++] = {gradient, Touch(row, update.version)};
    if (track_usage_) Use(row, update.now_ms);
  }
  UpdateRows(step, {found, waiting});
}

RowId EmbeddingTable::FindOrInsert(Key key, const Update& update) {
  const RowId row = index_.Find(key);
  if (row != kNoRow) return row;
  if (Admit(key, update.version)) return Insert(key, update);
  table_->counters().not_admitted.fetch_add(1, std::memory_order_relaxed);
  return kNoRow;
}

void EmbeddingTable::UpdateRows(const Optimizer::Step& step, std::span<const RowUpdate> rows) const {
  const size_t dim = table_->dim();
  const float norm_max = table_->spec().optimizer().clip().row_norm();
  if (norm_max <= 0) return table_->optimizer().UpdateRows(step, dim, rows);
  for (const RowUpdate& row : rows) {
    Optimizer::Step clipped = step;
    clipped.gradient_scale = Table::ScaleToNorm(ByteView(row.gradient, dim * sizeof(float)), step.clip_value, norm_max);
    table_->optimizer().UpdateRows(clipped, dim, {&row, 1});
  }
}

bool EmbeddingTable::Admit(Key key, Version version) {
  const v1::Admission& admission = table_->spec().embedding().admission();
  const uint32_t count_min = admission.count_min();
  if (count_min <= 1 && admission.probability() >= 1) return true;
  if (count_min > 1) {
    if (candidates_.size() >= limits::kAdmissionCandidatesMax) ForgetSomeCandidates();
    uint32_t& seen = candidates_[key];
    if (++seen < count_min) return false;
  }
  // The draw depends on the update, so that a key gets a new chance each time, and the same one in a replay.
  if (RandomUniform(StreamSeed(kAdmissionStream, key), version) >= admission.probability()) return false;
  candidates_.erase(key);
  return true;
}

void EmbeddingTable::ForgetSomeCandidates() {
  // Halving keeps the order among the frequent and drops those seen once.
  for (auto it = candidates_.begin(); it != candidates_.end();) {
    it->second /= 2;
    if (it->second == 0) {
      candidates_.erase(it++);
    } else {
      ++it;
    }
  }
}

RowId EmbeddingTable::Insert(Key key, const Update& update) {
  if (index_.size() >= rows_max_) MakeRoom(update);
  if (index_.full()) index_.Grow();
  const RowId row = TakeFreeRow();
  float* const values = Touch(row, update.version);
  layout_.Keys(pages_[row >> layout_.rows_log2].buffer)[PlaceOf(row)] = key;
  index_.Insert(key, row);
  table_->InitializeRow(key, values);
  if (table_->state_layout().FloatsFor(table_->dim()) > 0) {
    table_->optimizer().InitializeState(values + table_->dim(), table_->dim());
  }
  if (track_usage_) {
    usage_[row >> layout_.rows_log2][PlaceOf(row)] = {};
    Use(row, update.now_ms);
  }
  return row;
}

RowId EmbeddingTable::TakeFreeRow() {
  if (free_.empty()) {
    const RowId first = static_cast<RowId>(pages_.size() << layout_.rows_log2);
    BufferRef page = BufferRef::NewKept(layout_.bytes());
    std::memset(layout_.Keys(page), 0, layout_.rows() * (sizeof(Key) + sizeof(uint32_t)));
    pages_.push_back({std::move(page)});
    if (track_usage_) usage_.push_back(std::make_unique<Usage[]>(layout_.rows()));
    for (uint32_t i = layout_.rows(); i-- > 0;) free_.push_back(first + i);
  }
  const RowId row = free_.back();
  free_.pop_back();
  return row;
}

void EmbeddingTable::Unshare(Page* page) {
  if (!page->buffer.unique()) {
    BufferRef fresh = BufferRef::NewKept(layout_.bytes());
    std::memcpy(fresh->bytes(), page->buffer->bytes(), layout_.bytes());
    page->buffer = std::move(fresh);
  }
  page->may_be_shared = false;
}

void EmbeddingTable::Use(RowId row, uint64_t now_ms) {
  Usage& usage = usage_[row >> layout_.rows_log2][PlaceOf(row)];
  usage.last_used = static_cast<uint32_t>((std::max(now_ms, made_ms_) - made_ms_) / kTickMs);
  if (usage.count < UINT32_MAX) ++usage.count;
}

void EmbeddingTable::Evict(RowId row, Version version) {
  Touch(row, version);
  const BufferRef& page = pages_[row >> layout_.rows_log2].buffer;
  const Key key = layout_.Keys(page)[PlaceOf(row)];
  layout_.Changed(page)[PlaceOf(row)] = 0;
  index_.Erase(key);
  free_.push_back(row);
  ++evictions_;
  evicted_.emplace_back(version, key);
  if (evicted_.size() > limits::kEvictedKeysRemembered) {
    evictions_known_since_ = evicted_.front().first;
    evicted_.pop_front();
  }
  table_->counters().evicted.fetch_add(1, std::memory_order_relaxed);
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
  std::vector<Key> keys = ColdestKeys();
  EvictKeys(keys, update.version);
  if (evictions != nullptr) evictions->Note({table_->id(), std::move(keys)});
}

bool EmbeddingTable::EvictKeys(std::span<const Key> keys, Version version) {
  for (const Key key : keys) {
    const RowId row = index_.Find(key);
    if (row == kNoRow) return false;
    Evict(row, version);
  }
  return true;
}

std::vector<Key> EmbeddingTable::ColdestKeys() const {
  const bool by_count = table_->spec().embedding().eviction().policy() == v1::Eviction::LEAST_FREQUENT;
  // Ties between equal stamps are broken by the other measure, then by row, so that replays agree.
  std::vector<std::pair<uint64_t, RowId>> coldness;
  coldness.reserve(index_.size());
  for (size_t p = 0; p < pages_.size(); ++p) {
    const uint32_t* const changed = layout_.Changed(pages_[p].buffer);
    for (uint32_t i = 0; i < layout_.rows(); ++i) {
      if (changed[i] == 0) continue;
      const Usage& usage = usage_[p][i];
      const uint64_t high = by_count ? usage.count : usage.last_used;
      const uint64_t low = by_count ? usage.last_used : usage.count;
      coldness.emplace_back(high << 32 | low, static_cast<RowId>((p << layout_.rows_log2) + i));
    }
  }
  const size_t going = std::min(coldness.size(), std::max<size_t>(1, rows_max_ / kEvictedShare));
  std::nth_element(coldness.begin(), coldness.begin() + (going - 1), coldness.end());
  std::vector<Key> keys(going);
  for (size_t i = 0; i < going; ++i) {
    const RowId row = coldness[i].second;
    keys[i] = layout_.Keys(pages_[row >> layout_.rows_log2].buffer)[PlaceOf(row)];
  }
  return keys;
}

bool EmbeddingTable::EvictExpired(uint64_t now_ms, Version version, Evictions* evictions) {
  const uint64_t ttl_ms = table_->spec().embedding().eviction().ttl_ms();
  // A sweep may have read the clock before the table was made.
  if (ttl_ms == 0 || now_ms <= made_ms_) return false;
  const uint64_t now_ticks = (now_ms - made_ms_) / kTickMs;
  const uint64_t ttl_ticks = (ttl_ms + kTickMs - 1) / kTickMs;
  std::vector<Key> keys;
  for (size_t p = 0; p < pages_.size(); ++p) {
    for (uint32_t i = 0; i < layout_.rows(); ++i) {
      if (layout_.Changed(pages_[p].buffer)[i] == 0 || usage_[p][i].last_used + ttl_ticks >= now_ticks) continue;
      keys.push_back(layout_.Keys(pages_[p].buffer)[i]);
    }
  }
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
  for (const Page& page : pages_) {
    if (after != nullptr && page.version <= *after) continue;
    snapshot.pages.push_back({page.buffer, page.version});
    page.may_be_shared = true;
  }
  if (after == nullptr) return snapshot;
  for (auto it = evicted_.rbegin(); it != evicted_.rend() && it->first > *after; ++it) {
    snapshot.evicted.push_back(it->second);
  }
  return snapshot;
}

void EmbeddingTable::CountBytes() {
  const uint64_t page_bytes =
      layout_.bytes() + Buffer::kAlignment + sizeof(Page) + (track_usage_ ? layout_.rows() * sizeof(Usage) : 0);
  const uint64_t bytes = pages_.size() * page_bytes + index_.bytes() + free_.capacity() * sizeof(RowId) +
                         candidates_.capacity() * (sizeof(std::pair<Key, uint32_t>) + 1);
  Table::Counters& counters = table_->counters();
  counters.bytes.fetch_add(bytes - counted_bytes_, std::memory_order_relaxed);  // Wraps to a subtraction if it shrank.
  counters.rows.fetch_add(index_.size() - counted_rows_, std::memory_order_relaxed);
  counted_bytes_ = bytes;
  counted_rows_ = index_.size();
}

}  // namespace lodestone::server
