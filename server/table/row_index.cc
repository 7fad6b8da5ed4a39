#include "server/table/row_index.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace lodestone::server {
namespace {

// A former index of so many buckets (64 KiB, some 4,000 keys) is moved at once.
constexpr uint64_t kMovedAtOnce = 1024;
// Buckets that an insertion moves: the next growth is due after about as many insertions as there are buckets.
constexpr uint64_t kMovedPerInsertion = 8;

}  // namespace

void RowIndex::Allocate(uint32_t buckets) {
  bucket_count_ = buckets;
  memory_ = AllocateZeroed(bucket_count_ * sizeof(Bucket));
}

void RowIndex::Grow() {
  MoveFormer(former_count_);
  former_ = std::move(memory_);
  former_count_ = bucket_count_;
  former_moved_ = 0;
  Allocate(static_cast<uint32_t>(Grown(bucket_count_)));
  if (former_count_ <= kMovedAtOnce) MoveFormer(former_count_);
}

void RowIndex::MoveFormer(uint64_t buckets) {
  if (former_count_ == 0) return;
  const auto* const former = static_cast<const Bucket*>(former_.get());
  // Homes keep their order, so that the new buckets are filled from front to back.
  const uint64_t end = std::min(former_count_, former_moved_ + buckets);
  for (; former_moved_ < end; ++former_moved_) {
    const Bucket& bucket = former[former_moved_];
    for (uint32_t i = 0; i < bucket.used; ++i) {
      if (bucket.numbers[i] != 0) Put(bucket.keys[i], bucket.numbers[i]);
    }
  }
  if (former_moved_ < former_count_) return;
  former_count_ = 0;
  former_.reset();
}

uint32_t* RowIndex::NumberInFormer(Key key, uint32_t* bucket) const {
  auto* const former = static_cast<Bucket*>(former_.get());
  for (uint32_t b = HomeAmong(former_count_, key);; b = b + 1 == former_count_ ? 0 : b + 1) {
    for (uint32_t i = 0; i < former[b].used; ++i) {
      if (former[b].keys[i] != key || former[b].numbers[i] == 0) continue;
      *bucket = b;
      return &former[b].numbers[i];
    }
    if (former[b].used < kSlots) return nullptr;
  }
}

RowId RowIndex::FindUnmoved(Key key) const {
  if (former_count_ == 0) return kNoRow;
  uint32_t bucket = 0;
  const uint32_t* const number = NumberInFormer(key, &bucket);
  return number == nullptr ? kNoRow : *number - 1;
}

size_t RowIndex::BytesWith(size_t keys) const {
  uint64_t buckets = bucket_count_, former = former_count_;
  while (keys * 100 > buckets * kSlots * kLoadMaxPercent) former = std::exchange(buckets, Grown(buckets));
  return (buckets + former) * sizeof(Bucket);
}

void RowIndex::Reserve(size_t keys) {
  LODESTONE_CHECK(size_ == 0);
  MoveFormer(former_count_);
  const uint64_t buckets = keys * 100 / (kSlots * kLoadMaxPercent) + 1;
  if (buckets > bucket_count_) Allocate(static_cast<uint32_t>(buckets));
}

void RowIndex::Put(Key key, uint32_t number) {
  uint32_t b = HomeOf(key);
  while (buckets()[b].used == kSlots) b = Next(b);
  Bucket& bucket = buckets()[b];
  bucket.keys[bucket.used] = key;
  bucket.numbers[bucket.used] = number;
  ++bucket.used;
}

void RowIndex::Insert(Key key, RowId row) {
  MoveFormer(kMovedPerInsertion);
  Put(key, row + 1);
  ++size_;
}

void RowIndex::Erase(Key key) {
  --size_;
  if (former_count_ > 0) {
    uint32_t bucket = 0;
    if (uint32_t* const number = NumberInFormer(key, &bucket); number != nullptr) {
      *number = 0;
      if (bucket >= former_moved_) return;
    }
  }
  uint32_t hole = HomeOf(key);
  uint32_t slot = kSlots;
  for (;; hole = Next(hole)) {
    const Bucket& bucket = buckets()[hole];
    for (slot = 0; slot < bucket.used && bucket.keys[slot] != key; ++slot) {
    }
    if (slot < bucket.used) break;
  }
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
