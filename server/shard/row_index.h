// Finds the row of a key: open addressing with linear probing over one tag byte and one row number per entry.
//
// The keys themselves stand in the pages (embedding_table.h), which the index asks through `KeyOf`; so an entry takes
// five bytes. Entries are erased by shifting their successors back: no tombstones, and the table never needs cleaning.
//
// Not thread-safe: owned by the shard's executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/hash.h"
#include "common/types.h"

namespace lodestone {

// Number of a row within its shard's part of a table.
using RowId = uint32_t;
inline constexpr RowId kNoRow = UINT32_MAX;

class RowIndex {
 public:
  // Where the search for `key` starts; computed ahead to prefetch.
  struct Probe {
    size_t at = 0;
    uint8_t tag = 0;
  };
  Probe Prepare(Key key) const {
    // Mix64's top bits chose the shard; multiplying spreads the rest of them over the top again.
    const uint64_t h = Mix64(key) * 0x9e3779b97f4a7c15ull;
    const Probe probe{static_cast<size_t>((static_cast<unsigned __int128>(h) * capacity_) >> 64),
                      static_cast<uint8_t>(0x80 | (h & 0x7f))};
    __builtin_prefetch(&tags_[probe.at]);
    __builtin_prefetch(&rows_[probe.at]);
    return probe;
  }

  // The first row from `probe` on whose tag fits, to prefetch its key; kNoRow if there is none.
  RowId Guess(Probe probe) const {
    for (size_t at = probe.at; tags_[at] != 0; at = Next(at)) {
      if (tags_[at] == probe.tag) return rows_[at];
    }
    return kNoRow;
  }

  // The row of `key`, or kNoRow.
  template <typename KeyOf>
  RowId Find(Key key, Probe probe, const KeyOf& key_of) const {
    for (size_t at = probe.at; tags_[at] != 0; at = Next(at)) {
      if (tags_[at] == probe.tag && key_of(rows_[at]) == key) return rows_[at];
    }
    return kNoRow;
  }

  // True if the next Insert needs a Grow first.
  bool full() const { return (size_ + 1) * 100 > capacity_ * kLoadMaxPercent; }
  // Empties the index and makes it larger; the caller inserts all rows again.
  void Grow();

  // REQUIRES: !full(), and key is not there.
  void Insert(Key key, RowId row);
  // REQUIRES: key is there, as `row`.
  template <typename KeyOf>
  void Erase(Key key, RowId row, const KeyOf& key_of) {
    size_t hole = Prepare(key).at;
    while (rows_[hole] != row || tags_[hole] == 0) hole = Next(hole);
    // An entry behind the hole moves into it unless its own start lies cyclically after the hole.
    for (size_t at = Next(hole); tags_[at] != 0; at = Next(at)) {
      const size_t start = Prepare(key_of(rows_[at])).at;
      const bool starts_after_hole = hole <= at ? (hole < start && start <= at) : (hole < start || start <= at);
      if (starts_after_hole) continue;
      tags_[hole] = tags_[at];
      rows_[hole] = rows_[at];
      hole = at;
    }
    tags_[hole] = 0;
    --size_;
  }

  size_t size() const { return size_; }
  // Bytes that the index takes.
  size_t bytes() const { return capacity_ * (sizeof(uint8_t) + sizeof(RowId)); }

  RowIndex() { Allocate(kCapacityMin); }

 private:
  static constexpr size_t kCapacityMin = 16;
  static constexpr size_t kLoadMaxPercent = 85;

  size_t Next(size_t at) const { return at + 1 == capacity_ ? 0 : at + 1; }
  void Allocate(size_t capacity);

  size_t capacity_ = 0;
  size_t size_ = 0;
  std::unique_ptr<uint8_t[]> tags_;  // 0: empty.
  std::unique_ptr<RowId[]> rows_;
};

}  // namespace lodestone
