// The most frequent keys of a stream, in bounded memory: Space-Saving (Metwally, Agrawal, El Abbadi: Efficient
// Computation of Frequent and Top-k Elements in Data Streams, ICDT 2005).
//
// A key that is more than 1 / kCounters of the stream has a counter, whatever the order; a counter is too high by no
// more than its `error`.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/types.h"

namespace lodestone::server {

class KeySketch {
 public:
  static constexpr size_t kCounters = 32;

  void Add(TableId table, Key key);
  void Clear() { *this = KeySketch(); }

  // All that was added.
  uint64_t total() const { return total_; }

  struct Frequent {
    TableId table = 0;
    Key key = 0;
    uint64_t count = 0;  // At least: without the error.
  };
  // The keys that came `count_min` times or more for certain, the most frequent first.
  std::vector<Frequent> AtLeast(uint64_t count_min) const;

 private:
  // Counters side by side, so that the search for a key is a few vector instructions.
  std::array<Key, kCounters> keys_ = {};
  std::array<TableId, kCounters> tables_ = {};
  std::array<uint32_t, kCounters> counts_ = {};  // 0: free.
  std::array<uint32_t, kCounters> errors_ = {};
  uint64_t total_ = 0;
};

}  // namespace lodestone::server
