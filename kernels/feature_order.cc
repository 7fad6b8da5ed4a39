#include "kernels/feature_order.h"

#include <algorithm>

namespace lodestone::kernels {

void FeatureOrderArrays::Fill(const SparseBatch& batch, size_t distinct) {
  const uint32_t features = batch.samples == 0 ? 0 : batch.offsets[batch.samples];
  next_.assign(distinct + 1, 0);
  for (uint32_t f = 0; f < features; ++f) ++next_[batch.row[f] + 1];
  for (size_t r = 0; r < distinct; ++r) next_[r + 1] += next_[r];

  chunk_begin_.clear();
  chunk_row_.clear();
  first_chunk_.clear();
  end_chunk_.clear();
  for (size_t r = 0; r < distinct; ++r) {
    const uint32_t first = static_cast<uint32_t>(chunk_row_.size());
    for (uint32_t at = next_[r]; at < next_[r + 1];
         at += std::min(FeatureOrder::kFeaturesPerChunk, next_[r + 1] - at)) {
      chunk_begin_.push_back(at);
      chunk_row_.push_back(static_cast<uint32_t>(r));
    }
    if (chunk_row_.size() > first + 1) {
      first_chunk_.push_back(first);
      end_chunk_.push_back(static_cast<uint32_t>(chunk_row_.size()));
    }
  }
  chunk_begin_.push_back(features);

  feature_.resize(features);
  sample_.resize(features);
  for (size_t s = 0; s < batch.samples; ++s) {
    for (uint32_t f = batch.offsets[s]; f < batch.offsets[s + 1]; ++f) {
      const uint32_t at = next_[batch.row[f]]++;
      feature_[at] = f;
      sample_[at] = static_cast<uint32_t>(s);
    }
  }
}

FeatureOrder FeatureOrderArrays::View() const {
  return {chunk_row_.size(), feature_.data(),     sample_.data(),      chunk_begin_.data(),
          chunk_row_.data(), first_chunk_.size(), first_chunk_.data(), end_chunk_.data()};
}

}  // namespace lodestone::kernels
