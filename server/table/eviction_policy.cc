#include "server/table/eviction_policy.h"

#include "common/base/limits.h"
#include "common/base/random.h"
#include "server/table/page_layout.h"
#include "server/table/row_store.h"
#include "server/table/table.h"

namespace lodestone::server {
namespace {

constexpr uint64_t kAdmissionStream = 0x61646d6974ull;
constexpr uint64_t kFarPartOfTtl = 2;
constexpr uint64_t kEvictionStream = 0x6576696374ull;
constexpr size_t kEvictedShare = 16;       // A full table evicts this part of the rows that it compares.
constexpr size_t kRowsComparedMax = 4096;  // At once.
constexpr uint32_t kRowsPerDraw = 8;
constexpr size_t kSweepsMax = 60;         // In which a sweep comes round.
constexpr uint64_t kCandidatesShare = 4;  // Of a table's memory_max_bytes, this part at most is for candidates.
constexpr uint64_t kBytesPerCandidate = 2 * (sizeof(std::pair<Key, uint32_t>) + 1);
constexpr uint64_t kCandidatesLeast = 1024;
constexpr uint64_t kSweepPeriodMs = 1000;

size_t RowsMax(const Table& table, const TableSettings& settings) {
  const uint64_t rows_max = settings.spec.embedding().eviction().rows_max();
  if (rows_max == 0) return SIZE_MAX;
  return rows_max / table.shards() + (rows_max % table.shards() != 0);
}

// Keys of a shard that may wait to be admitted: by the settings alone, so that a replay forgets the same ones.
size_t CandidatesMax(const Table& table, const TableSettings& settings) {
  const uint64_t bytes_max = settings.spec.memory_max_bytes();
  if (bytes_max == 0) return limits::kAdmissionCandidatesMax;
  return std::clamp<uint64_t>(bytes_max / kCandidatesShare / table.shards() / kBytesPerCandidate, kCandidatesLeast,
                              limits::kAdmissionCandidatesMax);
}

}  // namespace

EvictionPolicy::EvictionPolicy(const Table* table, const TableSettings* settings, const PageLayout& layout,
                               uint64_t made_ms, Candidates candidates, std::vector<PageUsage> usage)
    : table_(table),
      rows_log2_(layout.rows_log2),
      tracks_usage_(TracksUsage(*table)),
      made_ms_(made_ms),
      settings_(settings),
      rows_max_(RowsMax(*table, *settings)),
      candidates_max_(CandidatesMax(*table, *settings)),
      restored_(!usage.empty()),
      usage_(std::move(usage)),
      candidates_(std::move(candidates)) {
  for (size_t page = 0; page < usage_.size(); ++page) {
    for (uint32_t i = 0; i < 1u << rows_log2_; ++i) {
      const Usage& usage = usage_[page][i];
      const bool newer = static_cast<int32_t>(usage.last_used - newest_tick_) > 0;  // Ticks wrap after 2^32.
      if (usage.count > 0 && (newer || newest_tick_ == 0)) newest_tick_ = usage.last_used;
    }
  }
}

void EvictionPolicy::SetSettings(const TableSettings* settings) {
  settings_ = settings;
  rows_max_ = RowsMax(*table_, *settings);
  candidates_max_ = CandidatesMax(*table_, *settings);
}

uint64_t EvictionPolicy::TtlTicks() const {
  const uint64_t ttl_ms = settings_->spec.embedding().eviction().ttl_ms();
  return ttl_ms / kTickMs + (ttl_ms % kTickMs != 0);
}

void EvictionPolicy::NoteTime(uint64_t now_ms) {
  if (now_ms < made_ms_) return;
  const uint32_t now = TickOf(now_ms);
  const uint32_t ticks = AgeOf(newest_tick_, now);
  if (ticks == 0) return;
  if (restored_ && ticks > TtlTicks() / kFarPartOfTtl) {
    kept_until_ms_ = now_ms + settings_->spec.embedding().eviction().ttl_ms();
  }
  newest_tick_ = now;
}

bool EvictionPolicy::TracksUsage(const Table& table) {
  const v1::Eviction& eviction = table.made().spec.embedding().eviction();
  return eviction.ttl_ms() > 0 || eviction.rows_max() > 0;
}

uint64_t EvictionPolicy::bytes() const {
  return usage_.size() * ((size_t{1} << rows_log2_) * sizeof(Usage)) +
         candidates_.capacity() * (sizeof(std::pair<Key, uint32_t>) + 1);
}

bool EvictionPolicy::Admit(Key key, Version version) {
  const v1::Admission& admission = settings_->spec.embedding().admission();
  const uint32_t count_min = admission.count_min();
  if (count_min <= 1 && admission.probability() >= 1) return true;
  if (count_min > 1) {
    if (candidates_.size() >= candidates_max_) ForgetSomeCandidates();
    uint32_t& seen = candidates_[key];
    if (++seen < count_min) return false;
  }
  // The draw depends on the update, so that a key gets a new chance each time, and the same one in a replay.
  if (RandomUniform(StreamSeed(kAdmissionStream, key), version) >= admission.probability()) return false;
  candidates_.erase(key);
  return true;
}

bool EvictionPolicy::MayAdmit(Key key) const {
  const uint32_t count_min = settings_->spec.embedding().admission().count_min();
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

template <typename Visit>
void EvictionPolicy::ForEachCompared(const RowStore& rows, uint64_t draw, const Visit& visit) const {
  const size_t pages = rows.pages().size();
  if (pages << rows_log2_ <= kRowsComparedMax) {
    for (size_t page = 0; page < pages; ++page) rows.ForEachRowOf(page, visit);
    return;
  }
  // Neighbours were often used together, so that a whole page would tell little; the uses of eight lie together.
  const uint32_t run = std::min(kRowsPerDraw, 1u << rows_log2_);
  const uint64_t runs = (uint64_t{pages} << rows_log2_) / run;
  const uint64_t seed = StreamSeed(kEvictionStream, draw);
  std::vector<uint64_t> drawn(kRowsComparedMax / run);
  for (size_t i = 0; i < drawn.size(); ++i) drawn[i] = RandomBits(seed, i) % runs;
  std::sort(drawn.begin(), drawn.end());
  drawn.erase(std::unique(drawn.begin(), drawn.end()), drawn.end());
  for (const uint64_t number : drawn) {
    const uint64_t row = number * run;
    const uint32_t place = static_cast<uint32_t>(row) & ((1u << rows_log2_) - 1);
    rows.ForEachRowOf(row >> rows_log2_, place, place + run, visit);
  }
}

std::vector<Key> EvictionPolicy::ColdestKeys(const RowStore& rows, uint64_t now_ms, uint64_t draw) const {
  const bool by_count = settings_->spec.embedding().eviction().policy() == v1::Eviction::LEAST_FREQUENT;
  // Ties between equal stamps are broken by the other measure, then by row, so that replays agree.
  const uint32_t now = TickOf(now_ms);
  std::vector<std::pair<uint64_t, RowId>> coldness;
  const auto add = [&](Key, RowId row) {
    const Usage& usage = usage_[rows.PageOf(row)][rows.PlaceOf(row)];
    const uint64_t recency = UINT32_MAX - AgeOf(usage.last_used, now);
    const uint64_t high = by_count ? usage.count : recency;
    const uint64_t low = by_count ? recency : usage.count;
    coldness.emplace_back(high << 32 | low, row);
  };
  // A full table has few places without a row, but those that were drawn may have none.
  for (uint64_t again = 0; coldness.empty(); ++again) ForEachCompared(rows, draw + again, add);
  const size_t going = std::clamp<size_t>(std::min(rows_max_, coldness.size()) / kEvictedShare, 1, coldness.size());
  std::nth_element(coldness.begin(), coldness.begin() + (going - 1), coldness.end());
  std::vector<Key> keys(going);
  for (size_t i = 0; i < going; ++i) keys[i] = rows.KeyOf(coldness[i].second);
  return keys;
}

size_t EvictionPolicy::BeginSweep(const RowStore& rows) {
  const uint64_t ttl_ms = settings_->spec.embedding().eviction().ttl_ms();
  if (ttl_ms == 0) return 0;
  const uint64_t round = std::clamp<uint64_t>(ttl_ms / 2 / kSweepPeriodMs, 1, kSweepsMax);
  const uint64_t number = (sweeps_++ + table_->id()) % round;
  const uint64_t pages = rows.pages().size();
  return ((number + 1) * pages / round - number * pages / round) << rows_log2_;
}

std::vector<Key> EvictionPolicy::ExpiredKeys(const RowStore& rows, uint64_t now_ms, size_t rows_max) {
  std::vector<Key> keys;
  // A sweep may have read the clock before the table was made.
  if (settings_->spec.embedding().eviction().ttl_ms() == 0 || now_ms <= made_ms_) return keys;
  NoteTime(now_ms);
  restored_ = false;
  if (now_ms < kept_until_ms_) return keys;
  const uint32_t now = TickOf(now_ms);
  const uint64_t ttl_ticks = TtlTicks();
  const size_t pages = rows.pages().size();
  for (size_t page = 0; page < pages && page << rows_log2_ < rows_max; ++page) {
    if (sweep_page_ >= pages) sweep_page_ = 0;
    const Usage* const usage = usage_[sweep_page_].get();
    rows.ForEachRowOf(sweep_page_++, [&](Key key, RowId row) {
      if (AgeOf(usage[rows.PlaceOf(row)].last_used, now) > ttl_ticks) keys.push_back(key);
    });
  }
  return keys;
}

}  // namespace lodestone::server
