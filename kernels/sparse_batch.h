// A batch's sparse features, in CSR form, as the kernels take them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lodestone::kernels {

// A batch's features sorted by row, in batch order within a row, and cut into chunks of at most kFeaturesPerChunk, none
// of which has features of two rows. Sums over it have one order, whatever runs at once. See feature_order.h.
struct FeatureOrder {
  static constexpr uint32_t kFeaturesPerChunk = 32;

  size_t chunks = 0;
  const uint32_t* feature = nullptr;      // [features]
  const uint32_t* sample = nullptr;       // [features]: of which sample
  const uint32_t* chunk_begin = nullptr;  // [chunks + 1], into `feature`
  const uint32_t* chunk_row = nullptr;    // [chunks]
  // The rows with several chunks: first_chunk[i] … end_chunk[i] - 1 are of one row.
  size_t long_rows = 0;
  const uint32_t* first_chunk = nullptr;  // [long_rows]
  const uint32_t* end_chunk = nullptr;    // [long_rows]
};

// Columns of a table's rows: element d of row r is data[r * stride + d].
template <typename Element>
struct ColumnsOf {
  Element* data = nullptr;
  size_t stride = 0;  // Elements from one row to the next; at least the columns.
};
using RowColumns = ColumnsOf<const float>;
using GradientColumns = ColumnsOf<float>;

// Sample r has the features offsets[r] … offsets[r + 1] - 1; feature f has the row index row[f] into a table of
// distinct rows [distinct, dim], and the value value[f] (null: all are 1).
struct SparseBatch {
  size_t samples = 0;
  const uint32_t* offsets = nullptr;  // [samples + 1], offsets[0] == 0
  const uint32_t* row = nullptr;      // [offsets[samples]]
  const float* value = nullptr;       // [offsets[samples]] or null
  // What a backend adds up gradients by whose sums would otherwise come in any order; or null.
  const FeatureOrder* order = nullptr;
};

}  // namespace lodestone::kernels
