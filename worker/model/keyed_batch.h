// A batch whose keys have been counted: each distinct key once, and for every feature which one it has. Rows are
// pulled, and their gradients pushed, once per distinct key.
//
// Fields whose rows have different widths are counted apart, since their rows are of different tables: a batch has a
// group of keys for each width.
//
// Thread safety: a KeyIndexer and a KeyedBatch belong to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "kernels/sparse_batch.h"
#include "worker/data/dataset.h"

namespace lodestone::worker {

// Which fields' keys are counted together, and the rows of which tables they have.
struct FieldGroups {
  std::vector<std::vector<uint32_t>> fields;  // By group, ascending; each field is in one. One or none: all features.
  std::vector<uint32_t> of_table;             // By row table; empty: all are of the first.

  size_t count() const { return fields.size() < 2 ? 1 : fields.size(); }
  size_t OfTable(size_t row_table) const { return of_table.empty() ? 0 : of_table[row_table]; }
};

// A batch in the memory of the backend that computes it.
struct BatchView {
  struct Group {
    size_t keys = 0;  // Distinct ones.
    // Where fields may have several keys, it has a field for each of its samples.
    kernels::SparseBatch sparse;
    size_t features = 0;  // Of all samples: the group's keys, one by one.
  };

  size_t size = 0;  // Samples.
  std::vector<Group> groups;
  const float* numeric = nullptr;        // [size, numeric_count]
  const float* labels = nullptr;         // [size], or [labels, size].
  const float* weights = nullptr;        // [size], or null: each counts 1.
  const float* candidates = nullptr;     // [2, size] (Batch), or null.
  const float* label_weights = nullptr;  // [labels, size] (Batch), or null.

  // Of a batch whose features are all in one group.
  const kernels::SparseBatch& sparse() const { return groups[0].sparse; }
};

struct KeyedBatch {
  struct Group {
    std::vector<Key> keys;      // Distinct, in the order of their first appearance.
    std::vector<uint32_t> row;  // By feature: where its key stands in `keys`.
    // Of several groups: the features of this one, as Batch has those of all.
    std::vector<uint32_t> offsets;
    std::vector<float> values;
  };

  Batch batch;
  std::vector<Group> groups = std::vector<Group>(1);

  const std::vector<Key>& KeysOf(size_t group) const { return groups[group].keys; }
  const std::vector<uint32_t>& OffsetsOf(size_t group) const {
    return groups.size() > 1 ? groups[group].offsets : batch.offsets;
  }
  const std::vector<float>& ValuesOf(size_t group) const {
    return groups.size() > 1 ? groups[group].values : batch.values;
  }
  // Whether no feature has a key.
  bool has_keys() const { return !batch.keys.empty(); }

  // A group's features in the kernels' form; valid while the batch stays as it is.
  kernels::SparseBatch SparseOf(size_t group) const;
  // All of it, for a backend that works on the host's memory; likewise.
  BatchView view() const;
};

// Counts keys. Keeps its memory from batch to batch.
class KeyIndexer {
 public:
  explicit KeyIndexer(FieldGroups groups = {}) : groups_(std::move(groups)) {}

  // Fills batch->groups from the rest. REQUIRES: at most limits::kRowsPerBatchMax features; with several groups, the
  // samples have the groups' fields.
  void Index(KeyedBatch* batch);
  // Reads these samples into batch->batch first. RESOURCE_EXHAUSTED, before any are counted, if they have more features
  // than that.
  absl::Status Read(const Dataset& data, std::span<const uint64_t> indices, KeyedBatch* batch);

 private:
  struct Slot {
    Key key = 0;
    uint32_t row = 0;
    uint32_t round = 0;  // The slot is taken if this is the current round.
  };

  // Fills features_ with the group's keys, one by one, and what `to` has of them.
  void Take(const Batch& batch, std::span<const uint32_t> fields, KeyedBatch::Group* to);
  void Count(std::span<const Key> features, KeyedBatch::Group* group);
  // The row of `key`, which is made if it is new; its slot is `at` or one of the next.
  uint32_t RowOf(Key key, size_t at, std::vector<Key>* keys);

  FieldGroups groups_;
  std::vector<Key> features_;
  std::vector<Slot> slots_;  // Open addressing, linear probing; its size is a power of two.
  uint32_t round_ = 0;
};

}  // namespace lodestone::worker
