// Rows in memory as one would keep them for reading and updating alone, for index_benchmark: absl::flat_hash_map, and
// plain open addressing with prefetch ("Plain": no pages, no versions, no snapshots, keys that never go away).
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/hash.h"
#include "common/base/types.h"
#include "server/table/slab_pool.h"

namespace lodestone {

inline constexpr size_t kDim = 16;            // Floats of a row, beside Adagrad's accumulators.
inline constexpr size_t kKeysPerCall = 4096;  // At most.
inline constexpr float kRate = 1e-3f;
inline constexpr float kEpsilon = 1e-8f;

// The i-th key of a table.
inline Key KeyNumber(size_t i) { return Mix64(i); }

// Of kKeysPerCall rows.
inline const std::vector<float>& Gradients() {
  static const auto* const gradients = new std::vector<float>(kKeysPerCall * kDim, 0.01f);
  return *gradients;
}

// What both maps keep their rows in: values, then Adagrad's accumulators if there are any.
class RowArray {
 public:
  RowArray(size_t n, size_t row_floats)
      : row_floats_(row_floats), memory_(server::AllocateZeroed(n * row_floats * sizeof(float))) {
    std::fill_n(At(0), n * row_floats, 0.5f);
  }
  float* At(uint32_t row) const { return static_cast<float*>(memory_.get()) + row * row_floats_; }

 private:
  const size_t row_floats_;
  server::LargeMemory memory_;
};

__attribute__((always_inline)) inline void AdagradLoop(float* row, const float* g) {
  for (size_t i = 0; i < kDim; ++i) {
    row[kDim + i] += g[i] * g[i];
    row[i] -= kRate * g[i] / (std::sqrt(row[kDim + i]) + kEpsilon);
  }
}

// The step for this CPU, as the compiler vectorizes it.
#if defined(__x86_64__)
__attribute__((target("avx512f,avx512vl,avx512dq,fma"))) inline void AdagradAvx512(float* row, const float* g) {
  AdagradLoop(row, g);
}
__attribute__((target("avx2,fma"))) inline void AdagradAvx2(float* row, const float* g) { AdagradLoop(row, g); }
inline void AdagradStep(float* row, const float* g) {
  if (__builtin_cpu_supports("avx512dq")) return AdagradAvx512(row, g);
  if (__builtin_cpu_supports("avx2")) return AdagradAvx2(row, g);
  AdagradLoop(row, g);
}
#else
inline void AdagradStep(float* row, const float* g) { AdagradLoop(row, g); }
#endif

class PlainRows {
 public:
  PlainRows(size_t n, bool adagrad) : rows_(n, adagrad ? 2 * kDim : kDim) {
    while ((size_t{1} << capacity_log2_) < n + n / 2) ++capacity_log2_;
    memory_ = server::AllocateZeroed(sizeof(Entry) << capacity_log2_);
    for (size_t i = 0; i < n; ++i) {
      size_t at = HomeOf(KeyNumber(i));
      while (entries()[at].key != 0) at = Next(at);
      entries()[at] = {KeyNumber(i), static_cast<uint32_t>(i)};
    }
  }

  void Read(const Key* keys, size_t count, float* dst) {
    ForEach(keys, count, kDim,
            [&](size_t i, const float* row) { std::memcpy(dst + i * kDim, row, kDim * sizeof(float)); });
  }
  void Apply(const Key* keys, size_t count) {
    ForEach(keys, count, 2 * kDim, [](size_t i, float* row) { AdagradStep(row, Gradients().data() + i * kDim); });
  }

 private:
  static constexpr size_t kBatch = 32;
  // A key of 0 is none; Mix64 makes it of none of those that are used.
  struct Entry {
    Key key;
    uint32_t row;
  };

  Entry* entries() const { return static_cast<Entry*>(memory_.get()); }
  size_t HomeOf(Key key) const { return key * 0x9e3779b97f4a7c15ull >> (64 - capacity_log2_); }
  size_t Next(size_t at) const { return (at + 1) & ((size_t{1} << capacity_log2_) - 1); }

  template <typename Visit>
  void ForEach(const Key* keys, size_t count, size_t floats, const Visit& visit) {
    for (size_t begin = 0; begin < count; begin += kBatch) {
      const size_t n = std::min(kBatch, count - begin);
      size_t at[kBatch];
      float* found[kBatch];
      for (size_t i = 0; i < n; ++i) {
        at[i] = HomeOf(keys[begin + i]);
        __builtin_prefetch(&entries()[at[i]]);
      }
      for (size_t i = 0; i < n; ++i) {
        while (entries()[at[i]].key != keys[begin + i]) at[i] = Next(at[i]);
        found[i] = rows_.At(entries()[at[i]].row);
        for (size_t f = 0; f < floats; f += 16) __builtin_prefetch(found[i] + f);
      }
      for (size_t i = 0; i < n; ++i) visit(begin + i, found[i]);
    }
  }

  size_t capacity_log2_ = 4;
  server::LargeMemory memory_;
  RowArray rows_;
};

class FlatHashMapRows {
 public:
  FlatHashMapRows(size_t n, bool adagrad) : rows_(n, adagrad ? 2 * kDim : kDim) {
    map_.reserve(n);
    for (size_t i = 0; i < n; ++i) map_.emplace(KeyNumber(i), static_cast<uint32_t>(i));
  }

  void Read(const Key* keys, size_t count, float* dst) {
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(dst + i * kDim, rows_.At(map_.find(keys[i])->second), kDim * sizeof(float));
    }
  }
  void Apply(const Key* keys, size_t count) {
    for (size_t i = 0; i < count; ++i) AdagradStep(rows_.At(map_.find(keys[i])->second), Gradients().data() + i * kDim);
  }

 private:
  absl::flat_hash_map<Key, uint32_t> map_;
  RowArray rows_;
};

}  // namespace lodestone
