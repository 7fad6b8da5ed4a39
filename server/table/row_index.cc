#include "server/table/row_index.h"

#include <utility>

#include "common/base/check.h"

namespace lodestone::server {

void RowIndex::Allocate(uint32_t buckets) {
  bucket_count_ = buckets;
  size_ = 0;
  memory_ = AllocateZeroed(bucket_count_ * sizeof(Bucket));
}

void RowIndex::Grow() {
  const LargeMemory old = std::move(memory_);
  const auto* const begin = static_cast<const Bucket*>(old.get());
  const Bucket* const end = begin + bucket_count_;
  Allocate(static_cast<uint32_t>(Grown(bucket_count_)));
  // Homes keep their order, so that the new buckets are filled from front to back.
  for (const Bucket* bucket = begin; bucket != end; ++bucket) {
    for (uint32_t i = 0; i < bucket->used; ++i) Insert(bucket->keys[i], bucket->numbers[i] - 1);
  }
}

size_t RowIndex::BytesWith(size_t keys) const {
  uint64_t buckets = bucket_count_;
  while (keys * 100 > buckets * kSlots * kLoadMaxPercent) buckets = Grown(buckets);
  return buckets * sizeof(Bucket);
}

void RowIndex::Reserve(size_t keys) {
  LODESTONE_CHECK(size_ == 0);
  const uint64_t buckets = keys * 100 / (kSlots * kLoadMaxPercent) + 1;
  if (buckets > bucket_count_) Allocate(static_cast<uint32_t>(buckets));
}

void RowIndex::Insert(Key key, RowId row) {
  uint32_t b = HomeOf(key);
  while (buckets()[b].used == kSlots) b = Next(b);
  Bucket& bucket = buckets()[b];
  bucket.keys[bucket.used] = key;
  bucket.numbers[bucket.used] = row + 1;
  ++bucket.used;
  ++size_;
}

void RowIndex::Erase(Key key) {
  uint32_t hole = HomeOf(key);
  uint32_t slot = kSlots;
  for (;; hole = Next(hole)) {
    const Bucket& bucket = buckets()[hole];
    for (slot = 0; slot < bucket.used && bucket.keys[slot] != key; ++slot) {
    }
    if (slot < bucket.used) break;
  }
  --size_;
  // Searches go past a bucket only if it is full: then what they look for may move back into the hole, from a bucket
  // that lies before their end.
  uint32_t b = hole;
  while (buckets()[b].used == kSlots) {
    b = Next(b);
    const Bucket& later = buckets()[b];
    for (uint32_t i = 0; i < later.used; ++i) {
      const uint32_t home = HomeOf(later.keys[i]);
      const bool starts_after_hole = hole < b ? (hole < home && home <= b) : (hole < home || home <= b);
      if (starts_after_hole) continue;
      buckets()[hole].keys[slot] = later.keys[i];
      buckets()[hole].numbers[slot] = later.numbers[i];
      hole = b;
      slot = i;
      break;
    }
  }
  Bucket& bucket = buckets()[hole];
  --bucket.used;
  bucket.keys[slot] = bucket.keys[bucket.used];
  bucket.numbers[slot] = bucket.numbers[bucket.used];
  bucket.numbers[bucket.used] = 0;
}

}  // namespace lodestone::server
