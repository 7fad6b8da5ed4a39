// The order in which a device adds up the gradients of a batch's rows (FeatureOrder in sparse_batch.h): a counting sort
// on the host, two passes over the features.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/sparse_batch.h"

namespace lodestone::kernels {

// The arrays of a FeatureOrder. Keeps its memory from batch to batch. Not thread-safe.
class FeatureOrderArrays {
 public:
  // REQUIRES: batch.row[f] < distinct for all features, of which there are less than 2^32.
  void Fill(const SparseBatch& batch, size_t distinct);

  // Of the last Fill; valid until the next.
  FeatureOrder View() const;

 private:
  std::vector<uint32_t> next_;  // By row: where its next feature goes.
  std::vector<uint32_t> feature_;
  std::vector<uint32_t> sample_;
  std::vector<uint32_t> chunk_begin_;
  std::vector<uint32_t> chunk_row_;
  std::vector<uint32_t> first_chunk_;
  std::vector<uint32_t> end_chunk_;
};

}  // namespace lodestone::kernels
