// Samples kept in memory, in chunks of compact arrays: nothing is copied as the data grows.
//
// Thread-safe once it is filled: all but Append and FinishLabels only read. Owns its samples.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "worker/data/dataset.h"
#include "worker/data/line_parser.h"
#include "worker/data/transform.h"

namespace lodestone::worker {

class StoredDataset final : public Dataset {
 public:
  // `keys_per_sample` is what every sample has, unless `sparse`.
  StoredDataset(uint32_t numeric_count, uint32_t keys_per_sample, bool sparse, bool grouped = false)
      : numeric_count_(numeric_count), keys_per_sample_(keys_per_sample), sparse_(sparse), grouped_(grouped) {}

  // Adds a sample. REQUIRES: as many numbers and keys as given to the constructor.
  void Append(float label, const ParsedLine& sample);

  // Removes the second of every two samples. REQUIRES: before Finish.
  void KeepEverySecond();

  // Bytes that the samples take.
  uint64_t bytes() const { return full_bytes_ + (chunks_.empty() ? 0 : BytesOf(chunks_.back())); }

  // Replaces every label and standardizes every row, once all are there.
  void Finish(const std::function<float(float)>& final_label, const Standardizer& standardizer);

  uint64_t size() const override { return size_; }
  void Read(std::span<const uint64_t> indices, Batch* batch) const override;

 private:
  static constexpr uint64_t kChunkSamples = 1 << 14;

  struct Chunk {
    std::vector<float> labels;
    std::vector<float> numeric;
    std::vector<uint64_t> offsets;  // Only if sparse: where each sample's keys end.
    std::vector<Key> keys;
    std::vector<float> values;     // Beside keys; empty if all are 1.
    std::vector<uint64_t> groups;  // Only if grouped.
  };

  static uint64_t BytesOf(const Chunk& chunk);
  static void Seal(Chunk* chunk);
  void ReadKeys(const Chunk& chunk, uint64_t row, Batch* batch) const;

  const uint32_t numeric_count_;
  const uint32_t keys_per_sample_;
  const bool sparse_;
  const bool grouped_;  // Samples have groups.
  uint64_t size_ = 0;
  uint64_t full_bytes_ = 0;  // Of all chunks but the last.
  bool has_values_ = false;  // Some chunk has values other than 1.
  std::vector<Chunk> chunks_;
};

}  // namespace lodestone::worker
