// The choice of the rows that one shard of an embedding table keeps: which new keys are admitted, how often and when
// rows were used, and which go.
//
// Usage stands beside the pages, so that reading a row never writes one.
//
// Not thread-safe: owned by the shard's executor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/types.h"
#include "server/table/row_index.h"

namespace lodestone::server {

struct PageLayout;
class RowStore;
class Table;
struct TableSettings;

class EvictionPolicy {
 public:
  // What is kept of each row for eviction.
  struct Usage {
    uint32_t last_used = 0;  // In kTickMs since the table was made, modulo 2^32: only ages can be told from it.
    uint32_t count = 0;      // Uses, saturating.
  };
  // Pushes of keys that are not admitted yet.
  using Candidates = absl::flat_hash_map<Key, uint32_t>;
  using PageUsage = std::unique_ptr<Usage[]>;

  // `table` and its settings must outlive it.
  EvictionPolicy(const Table* table, const TableSettings* settings, const PageLayout& layout, uint64_t made_ms)
      : EvictionPolicy(table, settings, layout, made_ms, {}, {}) {}
  // What was restored; `usage` of each page, empty if the table does not evict.
  EvictionPolicy(const Table* table, const TableSettings* settings, const PageLayout& layout, uint64_t made_ms,
                 Candidates candidates, std::vector<PageUsage> usage);
  // Goes by them from now on. They keep usage if those before did.
  void SetSettings(const TableSettings* settings);

  // Whether usage is kept: rows may be evicted.
  static bool TracksUsage(const Table& table);
  bool tracks_usage() const { return tracks_usage_; }
  // Of this shard; SIZE_MAX: no limit.
  size_t rows_max() const { return rows_max_; }
  uint64_t made_ms() const { return made_ms_; }
  const Candidates& candidates() const { return candidates_; }
  // Of a page's rows. REQUIRES: tracks_usage().
  const Usage* UsageOf(size_t page) const { return usage_[page].get(); }
  // Bytes that it takes.
  uint64_t bytes() const;

  // Whether a key without a row gets one by the update `version`; counts it.
  bool Admit(Key key, Version version);
  // Whether the next Admit of the key may be true.
  bool MayAdmit(Key key) const;

  // Rows are used, or looked through, at `now_ms`. A clock that has run far since a restored table was last used may be
  // wrong: rows go by their TTL only once the table has been here for that long again.
  void NoteTime(uint64_t now_ms);
  // Uses of rows may be unknown here: those by pulls are on no disk until their page is written, and no follower hears
  // of them. From the next sweep on no row goes by its TTL for as long as that is, or for a day.
  void KeepForNow() { keeps_for_now_ = true; }

  // The next two REQUIRE: tracks_usage().
  void Use(RowId row, uint64_t now_ms) {
    Usage& usage = usage_[row >> rows_log2_][row & ((1u << rows_log2_) - 1)];
    usage.last_used = TickOf(now_ms);
    if (usage.count < UINT32_MAX) ++usage.count;
  }
  // The first use of a new row.
  void UseNew(RowId row, uint64_t now_ms);

  // The rows that make room in a full table: those that were least frequently or least recently used among all rows,
  // or, in a large table, among those of some thousands of places drawn by `draw`; a sixteenth of them, so that each
  // call is short. Where the limit was lowered, among some dozens, each time: sweeps do the rest.
  std::vector<Key> ColdestKeys(const RowStore& rows, uint64_t now_ms, uint64_t draw) const;
  // A sweep begins, one of which is made each second: how many rows it is to look at, whole pages, so that each row is
  // looked at within half of its TTL or a minute. 0: none this time, or there is nothing to look for.
  size_t BeginSweep(const RowStore& rows);
  // Those that outlived their TTL among the next `rows_max` rows, rounded up to pages, which begin behind those of the
  // call before; and, of a table that has more rows than it may since its limit was lowered, those of the coldest
  // that are among them.
  std::vector<Key> SweptKeys(const RowStore& rows, uint64_t now_ms, size_t rows_max);

 private:
  static constexpr uint64_t kTickMs = 16;  // Resolution of last-used stamps: 2^32 of them are 795 days.
  // What seems older, the last quarter of what a stamp can tell, is of a clock that has gone back since: it is new.
  static constexpr uint32_t kAgeTicksMax = 3u << 30;

  // Ticks since a use.
  static uint32_t AgeOf(uint32_t last_used, uint32_t now) {
    const uint32_t age = now - last_used;
    return age > kAgeTicksMax ? 0 : age;
  }
  uint32_t TickOf(uint64_t now_ms) const {
    return static_cast<uint32_t>((std::max(now_ms, made_ms_) - made_ms_) / kTickMs);
  }
  uint64_t TtlTicks() const;
  bool IsOverLimit(const RowStore& rows) const;
  // How warm the warmest of the `count` coldest rows is, of those that there are, about.
  uint64_t WarmthOfColdest(const RowStore& rows, size_t count, uint32_t now) const;
  // A sweep looks at `now_ms`: whether rows go by their TTL.
  bool MayExpire(uint64_t now_ms);
  static std::vector<Key> KeysOfColdest(const RowStore& rows, size_t count,
                                        std::vector<std::pair<uint64_t, RowId>>* warmth);
  // What tells how cold a row is: the lower, the colder. Ties between equal stamps are broken by the other measure.
  uint64_t WarmthOf(const RowStore& rows, RowId row, uint32_t now) const;
  void ForgetSomeCandidates();
  // Calls visit(key, row) for the rows that ColdestKeys compares, about `count`.
  template <typename Visit>
  void ForEachCompared(const RowStore& rows, size_t count, uint64_t draw, const Visit& visit) const;

  // Constant after construction.
  const Table* table_;
  uint32_t rows_log2_;
  bool tracks_usage_;
  uint64_t made_ms_;

  const TableSettings* settings_;
  size_t rows_max_;
  size_t candidates_max_;

  size_t sweep_page_ = 0;       // That the next SweptKeys begins with.
  uint64_t sweeps_ = 0;         // Begun; tables begin with different numbers, so that small ones take turns.
  uint32_t newest_tick_ = 0;    // Of NoteTime, and of what was restored.
  bool restored_ = false;       // And not looked through since.
  bool keeps_for_now_ = false;  // From the next sweep on.
  uint64_t kept_until_ms_ = 0;  // No row goes by its TTL before.
  std::vector<PageUsage> usage_;
  Candidates candidates_;
};

}  // namespace lodestone::server
