// The hash index from keys to rows: buckets of one cache line, five keys and their row numbers each, with linear
// probing over buckets. So a search is one cache miss, rarely two, and never looks at the rows.
//
// Entries are erased by moving one of a later bucket back: the index never needs cleaning.
//
// A large index grows in steps: the larger one begins empty beside the former, each insertion moves some buckets over
// (as does MoveFormer), and a search that finds nothing looks into the former too. So no insertion takes longer for the
// number of keys.
//
// Not thread-safe: owned by the shard's executor.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/hash.h"
#include "common/base/types.h"
#include "server/table/slab_pool.h"

namespace lodestone::server {

// Number of a row within its shard's part of a table.
using RowId = uint32_t;
inline constexpr RowId kNoRow = UINT32_MAX;

class RowIndex {
 public:
  RowIndex() { Allocate(kBucketsMin); }

  // Where the search for `key` starts, until capacity() changes; brings it into the cache.
  uint32_t Prepare(Key key) const {
    const uint32_t home = HomeOf(key);
    __builtin_prefetch(&buckets()[home]);
    return home;
  }
  // The row of `key`, or kNoRow; while the index grows, kNoRow too if the key has not been moved yet, as FindUnmoved
  // knows. REQUIRES: home is Prepare(key).
  RowId FindMoved(Key key, uint32_t home) const {
    for (uint32_t b = home;; b = Next(b)) {
      const Bucket& bucket = buckets()[b];
      // Without branches, as where the key stands cannot be predicted. Free slots have no number to add.
      uint32_t number = 0;
      for (uint32_t i = 0; i < kSlots; ++i) number |= -static_cast<uint32_t>(bucket.keys[i] == key) & bucket.numbers[i];
      if (number != 0 || bucket.used < kSlots) return number - 1;
    }
  }
  // The row of a key that FindMoved has not found. Not inlined, so that loops over FindMoved keep their registers.
  RowId FindUnmoved(Key key) const;
  RowId Find(Key key) const {
    const RowId row = FindMoved(key, HomeOf(key));
    return row != kNoRow ? row : FindUnmoved(key);
  }
  // Whether keys are being moved to a larger index.
  bool grows() const { return former_count_ > 0; }
  // Moves so many buckets more of the former index, if there is one, and gives it back once all are.
  void MoveFormer(uint64_t buckets);

  // True if the next Insert needs a Grow first.
  bool full() const { return (size_ + 1) * 100 > bucket_count_ * kSlots * kLoadMaxPercent; }
  // Makes the index larger; of a large one, begins to.
  void Grow();
  // Makes it large enough for so many keys at once. REQUIRES: it is empty.
  void Reserve(size_t keys);

  // REQUIRES: !full(), and key is not there.
  void Insert(Key key, RowId row);
  // REQUIRES: key is there.
  void Erase(Key key);

  size_t size() const { return size_; }
  // Slots; only Grow and Reserve change it.
  size_t capacity() const { return bucket_count_ * kSlots; }
  // Bytes that the index takes; and will take at most when it gets so many keys.
  size_t bytes() const { return (bucket_count_ + former_count_) * sizeof(Bucket); }
  size_t BytesWith(size_t keys) const;

 private:
  static constexpr uint32_t kSlots = 5;
  static constexpr size_t kBucketsMin = 4;
  static constexpr size_t kLoadMaxPercent = 75;

  // A cache line. The first `used` slots are taken.
  struct Bucket {
    Key keys[kSlots];
    uint32_t numbers[kSlots];  // Row + 1; 0 in a free slot.
    uint32_t used;
  };
  static_assert(sizeof(Bucket) == 64);

  Bucket* buckets() const { return static_cast<Bucket*>(memory_.get()); }
  // Of the low half of Mix64: its top bits chose the shard.
  static uint32_t HomeAmong(uint64_t buckets, Key key) {
    return static_cast<uint32_t>((Mix64(key) & 0xffffffff) * buckets >> 32);
  }
  uint32_t HomeOf(Key key) const { return HomeAmong(bucket_count_, key); }
  uint32_t Next(uint32_t b) const { return b + 1 == bucket_count_ ? 0 : b + 1; }
  static uint64_t Grown(uint64_t buckets) { return buckets + buckets / 4 + 1; }
  void Allocate(uint32_t buckets);
  void Put(Key key, uint32_t number);
  // Where the number of `key` stands in the former index; null if it is not there. *bucket: in which bucket.
  uint32_t* NumberInFormer(Key key, uint32_t* bucket) const;

  uint64_t bucket_count_ = 0;  // Below 2^32.
  size_t size_ = 0;
  LargeMemory memory_;  // bucket_count_ Buckets.
  // The former, smaller index, while its keys are being moved. Its buckets stay as they are, so that searches in it go
  // on; the number of a key that was erased is 0.
  uint64_t former_count_ = 0;  // Buckets; 0: there is none.
  uint64_t former_moved_ = 0;  // Of these.
  LargeMemory former_;
};

}  // namespace lodestone::server
