// Samples that a test made up. Thread-safe: immutable once filled.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "worker/data/dataset.h"
#include "worker/data/label_counts.h"

namespace lodestone::worker {

class MemoryDataset final : public Dataset {
 public:
  struct Sample {
    float label = 0;
    std::vector<float> numeric;
    std::vector<Key> keys;
    std::vector<float> values;  // Beside keys; empty in all samples: all 1.
    std::vector<float> labels;  // Several, NaN where one is missing; empty in all samples: there is one.
  };

  explicit MemoryDataset(std::vector<Sample> samples) : samples_(std::move(samples)) {}

  uint64_t size() const override { return samples_.size(); }
  void Read(std::span<const uint64_t> indices, Batch* batch) const override {
    *batch = Batch();
    batch->size = indices.size();
    batch->offsets.push_back(0);
    for (uint64_t i : indices) {
      const Sample& sample = samples_[i];
      batch->labels.push_back(sample.label);
      batch->numeric.insert(batch->numeric.end(), sample.numeric.begin(), sample.numeric.end());
      batch->keys.insert(batch->keys.end(), sample.keys.begin(), sample.keys.end());
      batch->values.insert(batch->values.end(), sample.values.begin(), sample.values.end());
      batch->offsets.push_back(static_cast<uint32_t>(batch->keys.size()));
    }
    const size_t several = samples_.empty() ? 0 : samples_[0].labels.size();
    if (several == 0) return;
    batch->labels.resize(indices.size() * several);
    batch->label_weights.resize(indices.size() * several);
    for (size_t i = 0; i < indices.size(); ++i) {
      PutLabels(samples_[indices[i]].labels, 1, i, indices.size(), batch->labels.data(), batch->label_weights.data());
    }
  }

 private:
  const std::vector<Sample> samples_;
};

}  // namespace lodestone::worker
