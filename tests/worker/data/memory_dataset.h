// Samples that a test made up. Thread-safe: immutable once filled.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "worker/data/dataset.h"

namespace lodestone::worker {

class MemoryDataset final : public Dataset {
 public:
  struct Sample {
    float label = 0;
    std::vector<float> numeric;
    std::vector<Key> keys;
    std::vector<float> values;  // Beside keys; empty in all samples: all 1.
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
  }

 private:
  const std::vector<Sample> samples_;
};

}  // namespace lodestone::worker
