#include "server/table/eviction_policy.h"

#include "common/base/limits.h"
#include "common/base/random.h"
#include "server/table/page_layout.h"
#include "server/table/row_store.h"
#include "server/table/table.h"

namespace lodestone::server {
namespace {

constexpr uint64_t kAdmissionStream = 0x61646d6974ull;
constexpr size_t kEvictedShare = 16;  // A full table evicts this part of its rows at once.

size_t RowsMax(const Table& table) {
  const uint64_t rows_max = table.spec().embedding().eviction().rows_max();
  if (rows_max == 0) return SIZE_MAX;
  return rows_max / table.shards() + (rows_max % table.shards() != 0);
}

}  // namespace

EvictionPolicy::EvictionPolicy(const Table* table, const PageLayout& layout, uint64_t made_ms, Candidates candidates,
                               std::vector<PageUsage> usage)
    : table_(table),
      rows_log2_(layout.rows_log2),
      tracks_usage_(TracksUsage(*table)),
      rows_max_(RowsMax(*table)),
      made_ms_(made_ms),
      usage_(std::move(usage)),
      candidates_(std::move(candidates)) {}

bool EvictionPolicy::TracksUsage(const Table& table) {
  const v1::Eviction& eviction = table.spec().embedding().eviction();
  return eviction.ttl_ms() > 0 || eviction.rows_max() > 0;
}

uint64_t EvictionPolicy::bytes() const {
  return usage_.size() * ((size_t{1} << rows_log2_) * sizeof(Usage)) +
         candidates_.capacity() * (sizeof(std::pair<Key, uint32_t>) + 1);
}

bool EvictionPolicy::Admit(Key key, Version version) {
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

bool EvictionPolicy::MayAdmit(Key key) const {
  const uint32_t count_min = table_->spec().embedding().admission().count_min();
  if (count_min <= 1) return true;
  const auto seen = candidates_.find(key);
  return seen != candidates_.end() && seen->second + 1 >= count_min;
}

void EvictionPolicy::ForgetSomeCandidates() {
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

void EvictionPolicy::UseNew(RowId row, uint64_t now_ms) {
  const size_t page = row >> rows_log2_;
  const uint32_t rows = 1u << rows_log2_;
  while (usage_.size() <= page) usage_.push_back(std::make_unique<Usage[]>(rows));
  usage_[page][row & (rows - 1)] = {};
  Use(row, now_ms);
}

std::vector<Key> EvictionPolicy::ColdestKeys(const RowStore& rows, uint64_t now_ms) const {
  const bool by_count = table_->spec().embedding().eviction().policy() == v1::Eviction::LEAST_FREQUENT;
  // Ties between equal stamps are broken by the other measure, then by row, so that replays agree.
  const uint32_t now = TickOf(now_ms);
  std::vector<std::pair<uint64_t, RowId>> coldness;
  coldness.reserve(rows.size());
  rows.ForEachRow([&](Key, RowId row) {
    const Usage& usage = usage_[rows.PageOf(row)][rows.PlaceOf(row)];
    const uint64_t recency = UINT32_MAX - AgeOf(usage.last_used, now);
    const uint64_t high = by_count ? usage.count : recency;
    const uint64_t low = by_count ? recency : usage.count;
    coldness.emplace_back(high << 32 | low, row);
  });
  const size_t share = std::clamp<size_t>(rows_max_ / kEvictedShare, 1, limits::kEvictedKeysAtOnceMax);
  const size_t going = std::min(coldness.size(), share);
  std::nth_element(coldness.begin(), coldness.begin() + (going - 1), coldness.end());
  std::vector<Key> keys(going);
  for (size_t i = 0; i < going; ++i) keys[i] = rows.KeyOf(coldness[i].second);
  return keys;
}

std::vector<Key> EvictionPolicy::ExpiredKeys(const RowStore& rows, uint64_t now_ms, size_t keys_max) const {
  std::vector<Key> keys;
  const uint64_t ttl_ms = table_->spec().embedding().eviction().ttl_ms();
  // A sweep may have read the clock before the table was made.
  if (ttl_ms == 0 || now_ms <= made_ms_) return keys;
  const uint32_t now = TickOf(now_ms);
  const uint64_t ttl_ticks = ttl_ms / kTickMs + (ttl_ms % kTickMs != 0);
  rows.ForEachRow([&](Key key, RowId row) {
    const bool expired = AgeOf(usage_[rows.PageOf(row)][rows.PlaceOf(row)].last_used, now) > ttl_ticks;
    if (expired && keys.size() < keys_max) keys.push_back(key);
  });
  return keys;
}

}  // namespace lodestone::server
