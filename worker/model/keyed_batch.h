// A batch whose keys have been counted: each distinct key once, and for every feature which one it has. Rows are
// pulled, and their gradients pushed, once per distinct key.
//
// Thread safety: a KeyIndexer and a KeyedBatch belong to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/types.h"
#include "kernels/sparse_batch.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {

// A batch in the memory of the backend that computes it.
struct BatchView {
  size_t size = 0;  // Samples. Where fields may have several keys, `sparse` has a field for each of its samples.
  size_t keys = 0;  // Distinct ones.
  kernels::SparseBatch sparse;
  const float* numeric = nullptr;        // [size, numeric_count]
  const float* labels = nullptr;         // [size], or [labels, size].
  size_t features = 0;                   // Of all samples: the batch's keys, one by one.
  const float* weights = nullptr;        // [size], or null: each counts 1.
  const float* candidates = nullptr;     // [2, size] (Batch), or null.
  const float* label_weights = nullptr;  // [labels, size] (Batch), or null.
};

struct KeyedBatch {
  Batch batch;
  std::vector<Key> keys;      // Distinct, in the order of their first appearance.
  std::vector<uint32_t> row;  // Beside batch.keys: where each one's key stands in `keys`.

  // The features in the kernels' form; valid while the batch stays as it is.
  kernels::SparseBatch sparse() const {
    return {batch.offsets.empty() ? 0 : batch.offsets.size() - 1, batch.offsets.data(), row.data(),
            batch.values.empty() ? nullptr : batch.values.data()};
  }
  // All of it, for a backend that works on the host's memory; likewise.
  BatchView view() const {
    return {batch.size,
            keys.size(),
            sparse(),
            batch.numeric.data(),
            batch.labels.data(),
            batch.keys.size(),
            batch.weights_or_null(),
            batch.candidates.empty() ? nullptr : batch.candidates.data(),
            batch.label_weights.empty() ? nullptr : batch.label_weights.data()};
  }
};

// Counts keys. Keeps its memory from batch to batch.
class KeyIndexer {
 public:
  // Fills batch->keys and batch->row from batch->batch.keys. REQUIRES: at most limits::kRowsPerBatchMax features.
  void Index(KeyedBatch* batch);

 private:
  struct Slot {
    Key key = 0;
    uint32_t row = 0;
    uint32_t round = 0;  // The slot is taken if this is the current round.
  };

  // The row of `key`, which is made if it is new; its slot is `at` or one of the next.
  uint32_t RowOf(Key key, size_t at, std::vector<Key>* keys);

  std::vector<Slot> slots_;  // Open addressing, linear probing; its size is a power of two.
  uint32_t round_ = 0;
};

}  // namespace lodestone::worker
