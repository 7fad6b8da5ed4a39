#include "server/table/eviction_policy.h"

#include <utility>

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
constexpr size_t kRowsComparedOver = 64;   // Where there are more than there may be.
constexpr uint64_t kWidenedMax = 6;        // So often twice as many places are looked at, until there are enough rows.
constexpr size_t kSweptOver = 1 << 16;     // So many are looked at in a sweep then,
constexpr size_t kSweptAtOnce = 2048;      // and so many go in one step.
constexpr uint32_t kRowsPerDraw = 8;
constexpr size_t kSweepsMax = 60;         // In which a sweep comes round.
constexpr uint64_t kCandidatesShare = 4;  // Of a table's memory_max_bytes, this part at most is for candidates.
constexpr uint64_t kBytesPerCandidate = 2 * (sizeof(std::pair<Key, uint32_t>) + 1);
constexpr uint64_t kCandidatesLeast = 1024;
constexpr uint64_t kSweepPeriodMs = 1000;
constexpr uint64_t kKeptForNowMsMax = 24 * 3600 * 1000;

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
void EvictionPolicy::ForEachCompared(const RowStore& rows, size_t count, uint64_t draw, const Visit& visit) const {
  const size_t pages = rows.pages().size();
  if (pages << rows_log2_ <= count) {
    for (size_t page = 0; page < pages; ++page) rows.ForEachRowOf(page, visit);
    return;
  }
  // Neighbours were often used together, so that a whole page would tell little; the uses of eight lie together.
  const uint32_t run = std::min(kRowsPerDraw, 1u << rows_log2_);
  const uint64_t runs = (uint64_t{pages} << rows_log2_) / run;
  const uint64_t seed = StreamSeed(kEvictionStream, draw);
  std::vector<uint64_t> drawn(count / run);
  for (size_t i = 0; i < drawn.size(); ++i) drawn[i] = RandomBits(seed, i) % runs;
  std::sort(drawn.begin(), drawn.end());
  drawn.erase(std::unique(drawn.begin(), drawn.end()), drawn.end());
  for (const uint64_t number : drawn) {
    const uint64_t row = number * run;
    const uint32_t place = static_cast<uint32_t>(row) & ((1u << rows_log2_) - 1);
    rows.ForEachRowOf(row >> rows_log2_, place, place + run, visit);
  }
}

bool EvictionPolicy::IsOverLimit(const RowStore& rows) const { return rows.size() > rows_max_; }

uint64_t EvictionPolicy::WarmthOf(const RowStore& rows, RowId row, uint32_t now) const {
  const bool by_count = settings_->spec.embedding().eviction().policy() == v1::Eviction::LEAST_FREQUENT;
  const Usage& usage = usage_[rows.PageOf(row)][rows.PlaceOf(row)];
  const uint64_t recency = UINT32_MAX - AgeOf(usage.last_used, now);
  const uint64_t high = by_count ? usage.count : recency;
  const uint64_t low = by_count ? recency : usage.count;
  return high << 32 | low;
}

std::vector<Key> EvictionPolicy::ColdestKeys(const RowStore& rows, uint64_t now_ms, uint64_t draw) const {
  const uint32_t now = TickOf(now_ms);
  const bool over = IsOverLimit(rows);
  const size_t least = over ? 2 : 1;  // So that it gets smaller by new rows, too.
  const size_t enough = over ? std::min(rows.size(), least * kEvictedShare) : least;
  std::vector<std::pair<uint64_t, RowId>> compared;  // With their warmth; of equal ones the first goes.
  const auto add = [&](Key, RowId row) { compared.emplace_back(WarmthOf(rows, row, now), row); };
  // A full table has few places without a row, but those that were drawn may have none.
  for (uint64_t again = 0; compared.size() < (again < kWidenedMax ? enough : least); ++again) {
    compared.clear();
    ForEachCompared(rows, (over ? kRowsComparedOver : kRowsComparedMax) << std::min<uint64_t>(again, 20), draw + again,
                    add);
  }
  const size_t count = std::min(over ? kRowsComparedOver : rows_max_, compared.size());
  return KeysOfColdest(rows, std::max(count / kEvictedShare, least), &compared);
}

uint64_t EvictionPolicy::WarmthOfColdest(const RowStore& rows, size_t count, uint32_t now) const {
  std::vector<uint64_t> warmth;
  const auto add = [&](Key, RowId row) { warmth.push_back(WarmthOf(rows, row, now)); };
  for (uint64_t again = 0; warmth.empty(); ++again) {
    ForEachCompared(rows, kRowsComparedMax << std::min<uint64_t>(again, 20), rows.erased() + again, add);
  }
  const size_t place = std::min(warmth.size() - 1, warmth.size() * count / rows.size());
  std::nth_element(warmth.begin(), warmth.begin() + place, warmth.end());
  return warmth[place];
}

std::vector<Key> EvictionPolicy::KeysOfColdest(const RowStore& rows, size_t count,
                                               std::vector<std::pair<uint64_t, RowId>>* warmth) {
  if (count == 0) return {};
  std::nth_element(warmth->begin(), warmth->begin() + (count - 1), warmth->end());
  std::vector<Key> keys(count);
  for (size_t i = 0; i < count; ++i) keys[i] = rows.KeyOf((*warmth)[i].second);
  return keys;
}

size_t EvictionPolicy::BeginSweep(const RowStore& rows) {
  const uint64_t pages = rows.pages().size();
  const size_t over = IsOverLimit(rows) ? std::min<size_t>(pages << rows_log2_, kSweptOver) : 0;
  const uint64_t ttl_ms = settings_->spec.embedding().eviction().ttl_ms();
  if (ttl_ms == 0) return over;
  const uint64_t round = std::clamp<uint64_t>(ttl_ms / 2 / kSweepPeriodMs, 1, kSweepsMax);
  const uint64_t number = (sweeps_++ + table_->id()) % round;
  return std::max<size_t>(((number + 1) * pages / round - number * pages / round) << rows_log2_, over);
}

std::vector<Key> EvictionPolicy::SweptKeys(const RowStore& rows, uint64_t now_ms, size_t rows_max) {
  std::vector<Key> keys;
  const bool expire = MayExpire(now_ms);
  if (!expire && !IsOverLimit(rows)) return keys;
  const uint32_t now = TickOf(now_ms);
  const uint64_t ttl_ticks = TtlTicks();
  const size_t pages = rows.pages().size();
  std::vector<std::pair<uint64_t, RowId>> cold;  // With their warmth, if there are too many.
  // Neighbours were often used together: what is cold is told by rows from everywhere.
  const uint64_t cold_max = IsOverLimit(rows) ? WarmthOfColdest(rows, rows.size() - rows_max_, now) : 0;
  for (size_t page = 0; page < pages && page << rows_log2_ < rows_max; ++page) {
    if (sweep_page_ >= pages) sweep_page_ = 0;
    const Usage* const usage = usage_[sweep_page_].get();
    rows.ForEachRowOf(sweep_page_++, [&](Key key, RowId row) {
      if (expire && AgeOf(usage[rows.PlaceOf(row)].last_used, now) > ttl_ticks) {
        keys.push_back(key);
      } else if (IsOverLimit(rows)) {
        if (const uint64_t warmth = WarmthOf(rows, row, now); warmth <= cold_max) cold.emplace_back(warmth, row);
      }
    });
  }
  const size_t left = rows.size() - keys.size();
  if (left <= rows_max_) return keys;
  const size_t going = std::min({left - rows_max_, cold.size(), kSweptAtOnce});
  const std::vector<Key> coldest = KeysOfColdest(rows, going, &cold);
  keys.insert(keys.end(), coldest.begin(), coldest.end());
  return keys;
}

bool EvictionPolicy::MayExpire(uint64_t now_ms) {
  const uint64_t ttl_ms = settings_->spec.embedding().eviction().ttl_ms();
  // A sweep may have read the clock before the table was made.
  if (ttl_ms == 0 || now_ms <= made_ms_) return false;
  NoteTime(now_ms);
  restored_ = false;
  if (std::exchange(keeps_for_now_, false)) {
    kept_until_ms_ = std::max(kept_until_ms_, now_ms + std::min(ttl_ms, kKeptForNowMsMax));
  }
  return now_ms >= kept_until_ms_;
}

}  // namespace lodestone::server
