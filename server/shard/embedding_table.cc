#include "server/shard/embedding_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/limits.h"
#include "common/random.h"
#include "common/wire.h"

namespace lodestone {
namespace {

constexpr size_t kLookupBatch = 32;
constexpr uint64_t kTickMs = 16;  // Resolution of last-used stamps: 2^32 of them are two years.
constexpr uint64_t kAdmissionStream = 0x61646d6974ull;
constexpr size_t kEvictedShare = 16;  // A full table evicts this part of its rows at once.

size_t RowsMax(const Table& table) {
  const uint64_t rows_max = table.spec().embedding().eviction().rows_max();
  if (rows_max == 0) return SIZE_MAX;
  return rows_max / table.shards() + (rows_max % table.shards() != 0);
}

}  // namespace

PageLayout::PageLayout(const Table& table) : row_floats(table.dim() + table.state_layout().FloatsFor(table.dim())) {
  const size_t row_bytes = sizeof(Key) + sizeof(uint32_t) + row_floats * sizeof(float);
  const size_t fitting = std::max<size_t>(1, limits::kPageBytesMax / row_bytes);
  rows_log2 = static_cast<uint32_t>(std::bit_width(fitting) - 1);
}

EmbeddingTable::EmbeddingTable(Table* table, uint64_t now_ms)
    : table_(table),
      layout_(*table),
      made_ms_(now_ms),
      track_usage_(table->spec().embedding().eviction().ttl_ms() > 0 ||
                   table->spec().embedding().eviction().rows_max() > 0),
      rows_max_(RowsMax(*table)) {
  CountBytes();
}

EmbeddingTable::~EmbeddingTable() = default;

RowId EmbeddingTable::Find(Key key) const {
  return index_.Find(key, index_.Prepare(key), [this](RowId row) { return KeyOf(row); });
}

void EmbeddingTable::FindBatch(const uint8_t* keys, size_t count, RowId* rows) const {
  RowIndex::Probe probes[kLookupBatch];
  for (size_t i = 0; i < count; ++i) probes[i] = index_.Prepare(LoadAt<Key>(keys, i));
  for (size_t i = 0; i < count; ++i) {
    const RowId guess = index_.Guess(probes[i]);
    if (guess == kNoRow) continue;
    const Snapshot::Page& page = pages_[guess >> layout_.rows_log2];
    const uint32_t at = guess & (layout_.rows() - 1);
    __builtin_prefetch(&layout_.Keys(page.page)[at]);
    __builtin_prefetch(layout_.Row(page.page, at));
  }
  for (size_t i = 0; i < count; ++i) {
    rows[i] = index_.Find(LoadAt<Key>(keys, i), probes[i], [this](RowId row) { return KeyOf(row); });
  }
}

void EmbeddingTable::Read(const uint8_t* keys, size_t count, uint64_t now_ms, float* dst) {
  const size_t dim = table_->dim();
  RowId rows[kLookupBatch];
  for (size_t begin = 0; begin < count; begin += kLookupBatch) {
    const size_t n = std::min(kLookupBatch, count - begin);
    FindBatch(keys + begin * sizeof(Key), n, rows);
    for (size_t i = 0; i < n; ++i) {
      float* const out = dst + (begin + i) * dim;
      if (rows[i] == kNoRow) {
        table_->InitializeRow(LoadAt<Key>(keys, begin + i), out);
        continue;
      }
      std::memcpy(out, RowOf(rows[i]), dim * sizeof(float));
      if (track_usage_) Use(rows[i], now_ms);
    }
  }
}

void EmbeddingTable::Apply(const uint8_t* keys, const uint8_t* gradients, size_t count, uint64_t now_ms,
                           Version version) {
  const size_t dim = table_->dim();
  const float row_norm = table_->spec().optimizer().clip().row_norm();
  const uint64_t step_number = updates_++;
  Optimizer::Step step = table_->StepFor(step_number, nullptr, 0, 0);
  uint64_t not_admitted = 0;
  RowId rows[kLookupBatch];
  for (size_t begin = 0; begin < count; begin += kLookupBatch) {
    const size_t n = std::min(kLookupBatch, count - begin);
    FindBatch(keys + begin * sizeof(Key), n, rows);
    bool moved = false;  // An insertion may have evicted rows that were found before it.
    for (size_t i = 0; i < n; ++i) {
      const Key key = LoadAt<Key>(keys, begin + i);
      RowId row = moved ? Find(key) : rows[i];
      if (row == kNoRow) {
        if (!Admit(key, version)) {
          ++not_admitted;
          continue;
        }
        row = Insert(key, now_ms, version);
        moved = true;
      }
      Touch(row, version);
      if (track_usage_) Use(row, now_ms);
      const uint8_t* const gradient = gradients + (begin + i) * dim * sizeof(float);
      if (row_norm > 0) step = table_->StepFor(step_number, gradient, dim, row_norm);
      float* const values = RowOf(row);
      table_->optimizer().Update(step, dim, gradient, values, values + dim, values, values + dim);
    }
  }
  table_->counters().not_admitted.fetch_add(not_admitted, std::memory_order_relaxed);
  CountBytes();
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

RowId EmbeddingTable::Insert(Key key, uint64_t now_ms, Version version) {
  if (index_.size() >= rows_max_) EvictColdest(version);
  if (index_.full()) GrowIndex();
  const RowId row = TakeFreeRow();
  Touch(row, version);
  layout_.Keys(pages_[row >> layout_.rows_log2].page)[row & (layout_.rows() - 1)] = key;
  index_.Insert(key, row);
  float* const values = RowOf(row);
  table_->InitializeRow(key, values);
  if (table_->state_layout().FloatsFor(table_->dim()) > 0) {
    table_->optimizer().InitializeState(values + table_->dim(), table_->dim());
  }
  if (track_usage_) {
    usage_[row >> layout_.rows_log2][row & (layout_.rows() - 1)] = {};
    Use(row, now_ms);
  }
  return row;
}

RowId EmbeddingTable::TakeFreeRow() {
  if (free_.empty()) {
    const RowId first = static_cast<RowId>(pages_.size() << layout_.rows_log2);
    BufferRef page = BufferRef::New(layout_.bytes());
    std::memset(layout_.Keys(page), 0, layout_.rows() * (sizeof(Key) + sizeof(uint32_t)));
    pages_.push_back({std::move(page), 0});
    if (track_usage_) usage_.push_back(std::make_unique<Usage[]>(layout_.rows()));
    for (uint32_t i = layout_.rows(); i-- > 0;) free_.push_back(first + i);
  }
  const RowId row = free_.back();
  free_.pop_back();
  return row;
}

void EmbeddingTable::GrowIndex() {
  index_.Grow();
  for (size_t p = 0; p < pages_.size(); ++p) {
    const Key* const keys = layout_.Keys(pages_[p].page);
    const uint32_t* const changed = layout_.Changed(pages_[p].page);
    for (uint32_t i = 0; i < layout_.rows(); ++i) {
      if (changed[i] != 0) index_.Insert(keys[i], static_cast<RowId>((p << layout_.rows_log2) + i));
    }
  }
}

void EmbeddingTable::Touch(RowId row, Version version) {
  Snapshot::Page& page = pages_[row >> layout_.rows_log2];
  if (!page.page.unique()) {
    BufferRef fresh = BufferRef::New(layout_.bytes());
    std::memcpy(fresh->bytes(), page.page->bytes(), layout_.bytes());
    page.page = std::move(fresh);
  }
  page.version = version;
  layout_.Changed(page.page)[row & (layout_.rows() - 1)] = ChangedStamp(version);
}

void EmbeddingTable::Use(RowId row, uint64_t now_ms) {
  Usage& usage = usage_[row >> layout_.rows_log2][row & (layout_.rows() - 1)];
  usage.last_used = static_cast<uint32_t>((std::max(now_ms, made_ms_) - made_ms_) / kTickMs);
  if (usage.count < UINT32_MAX) ++usage.count;
}

void EmbeddingTable::Evict(RowId row, Version version) {
  const Key key = KeyOf(row);
  index_.Erase(key, row, [this](RowId other) { return KeyOf(other); });
  Touch(row, version);
  layout_.Changed(pages_[row >> layout_.rows_log2].page)[row & (layout_.rows() - 1)] = 0;
  free_.push_back(row);
  evicted_.emplace_back(version, key);
  if (evicted_.size() > limits::kEvictedKeysRemembered) {
    evictions_known_since_ = evicted_.front().first;
    evicted_.pop_front();
  }
  table_->counters().evicted.fetch_add(1, std::memory_order_relaxed);
}

void EmbeddingTable::EvictColdest(Version version) {
  const bool by_count = table_->spec().embedding().eviction().policy() == v1::Eviction::LEAST_FREQUENT;
  // Ties between equal stamps are broken by the other measure, then by row, so that replays agree.
  std::vector<std::pair<uint64_t, RowId>> coldness;
  coldness.reserve(index_.size());
  for (size_t p = 0; p < pages_.size(); ++p) {
    const uint32_t* const changed = layout_.Changed(pages_[p].page);
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
  for (size_t i = 0; i < going; ++i) Evict(coldness[i].second, version);
}

bool EmbeddingTable::EvictExpired(uint64_t now_ms, Version version) {
  const uint64_t ttl_ms = table_->spec().embedding().eviction().ttl_ms();
  // A sweep may have read the clock before the table was made.
  if (ttl_ms == 0 || now_ms <= made_ms_) return false;
  const uint64_t now_ticks = (now_ms - made_ms_) / kTickMs;
  const uint64_t ttl_ticks = (ttl_ms + kTickMs - 1) / kTickMs;
  bool any = false;
  for (size_t p = 0; p < pages_.size(); ++p) {
    for (uint32_t i = 0; i < layout_.rows(); ++i) {
      if (layout_.Changed(pages_[p].page)[i] == 0 || usage_[p][i].last_used + ttl_ticks >= now_ticks) continue;
      Evict(static_cast<RowId>((p << layout_.rows_log2) + i), version);
      any = true;
    }
  }
  if (any) CountBytes();
  return any;
}

std::optional<EmbeddingTable::Snapshot> EmbeddingTable::Collect(const Version* after) const {
  Snapshot snapshot;
  if (after == nullptr) {
    snapshot.pages = pages_;
    return snapshot;
  }
  if (*after < evictions_known_since_) return std::nullopt;
  for (const Snapshot::Page& page : pages_) {
    if (page.version > *after) snapshot.pages.push_back(page);
  }
  for (auto it = evicted_.rbegin(); it != evicted_.rend() && it->first > *after; ++it) {
    snapshot.evicted.push_back(it->second);
  }
  return snapshot;
}

void EmbeddingTable::CountBytes() {
  const uint64_t page_bytes = layout_.bytes() + Buffer::kAlignment + sizeof(Snapshot::Page) +
                              (track_usage_ ? layout_.rows() * sizeof(Usage) : 0);
  const uint64_t bytes = pages_.size() * page_bytes + index_.bytes() + free_.capacity() * sizeof(RowId) +
                         candidates_.capacity() * (sizeof(std::pair<Key, uint32_t>) + 1);
  Table::Counters& counters = table_->counters();
  counters.bytes.fetch_add(bytes - counted_bytes_, std::memory_order_relaxed);  // Wraps to a subtraction if it shrank.
  counters.rows.fetch_add(index_.size() - counted_rows_, std::memory_order_relaxed);
  counted_bytes_ = bytes;
  counted_rows_ = index_.size();
}

}  // namespace lodestone
