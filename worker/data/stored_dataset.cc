#include "worker/data/stored_dataset.h"

#include <utility>

#include "common/base/check.h"

namespace lodestone::worker {

uint64_t StoredDataset::BytesOf(const Chunk& chunk) {
  return chunk.labels.size() * sizeof(float) + chunk.numeric.size() * sizeof(float) +
         chunk.offsets.size() * sizeof(uint64_t) + chunk.keys.size() * sizeof(Key) +
         chunk.values.size() * sizeof(float) + chunk.groups.size() * sizeof(uint64_t);
}

void StoredDataset::Seal(Chunk* chunk) {
  chunk->labels.shrink_to_fit();
  chunk->numeric.shrink_to_fit();
  chunk->offsets.shrink_to_fit();
  chunk->keys.shrink_to_fit();
  chunk->values.shrink_to_fit();
  chunk->groups.shrink_to_fit();
}

void StoredDataset::Append(float label, const ParsedLine& sample) {
  LODESTONE_CHECK(sample.numeric.size() == numeric_count_);
  LODESTONE_CHECK(sparse_ || sample.keys.size() == keys_per_sample_);
  if (size_ % kChunkSamples == 0) {
    if (!chunks_.empty()) {
      Seal(&chunks_.back());
      full_bytes_ += BytesOf(chunks_.back());
    }
    chunks_.emplace_back();
  }
  Chunk& chunk = chunks_.back();
  chunk.labels.push_back(label);
  chunk.numeric.insert(chunk.numeric.end(), sample.numeric.begin(), sample.numeric.end());
  if (!sample.values.empty() && chunk.values.empty()) chunk.values.resize(chunk.keys.size(), 1.0f);
  chunk.keys.insert(chunk.keys.end(), sample.keys.begin(), sample.keys.end());
  if (!sample.values.empty()) {
    chunk.values.insert(chunk.values.end(), sample.values.begin(), sample.values.end());
    has_values_ = true;
  } else if (!chunk.values.empty()) {
    chunk.values.resize(chunk.keys.size(), 1.0f);
  }
  if (sparse_) chunk.offsets.push_back(chunk.keys.size());
  if (grouped_) chunk.groups.push_back(sample.group);
  ++size_;
}

void StoredDataset::KeepEverySecond() {
  StoredDataset kept(numeric_count_, keys_per_sample_, sparse_, grouped_);
  Batch batch;
  ParsedLine sample;
  for (uint64_t i = 0; i < size_; i += 2) {
    Read({&i, 1}, &batch);
    sample.numeric = batch.numeric;
    sample.keys = batch.keys;
    sample.values = batch.values;
    if (grouped_) sample.group = batch.groups[0];
    kept.Append(batch.labels[0], sample);
  }
  size_ = kept.size_;
  full_bytes_ = kept.full_bytes_;
  has_values_ = kept.has_values_;
  chunks_ = std::move(kept.chunks_);
}

void StoredDataset::Finish(const std::function<float(float)>& final_label, const Standardizer& standardizer) {
  for (Chunk& chunk : chunks_) {
    for (float& label : chunk.labels) label = final_label(label);
    for (size_t i = 0; standardizer.active() && i < chunk.labels.size(); ++i) {
      standardizer.Apply({chunk.numeric.data() + i * numeric_count_, numeric_count_});
    }
  }
  if (!chunks_.empty()) Seal(&chunks_.back());
}

void StoredDataset::ReadKeys(const Chunk& chunk, uint64_t row, Batch* batch) const {
  const uint64_t begin = !sparse_ ? row * keys_per_sample_ : row == 0 ? 0 : chunk.offsets[row - 1];
  const uint64_t end = sparse_ ? chunk.offsets[row] : begin + keys_per_sample_;
  batch->keys.insert(batch->keys.end(), chunk.keys.begin() + begin, chunk.keys.begin() + end);
  if (!has_values_) return;
  if (chunk.values.empty()) {
    batch->values.resize(batch->keys.size(), 1.0f);
  } else {
    batch->values.insert(batch->values.end(), chunk.values.begin() + begin, chunk.values.begin() + end);
  }
}

void StoredDataset::Read(std::span<const uint64_t> indices, Batch* batch) const {
  batch->size = indices.size();
  batch->labels.clear();
  batch->numeric.clear();
  batch->keys.clear();
  batch->values.clear();
  batch->groups.clear();
  batch->offsets.assign(1, 0);
  for (uint64_t index : indices) {
    const Chunk& chunk = chunks_[index / kChunkSamples];
    const uint64_t row = index % kChunkSamples;
    batch->labels.push_back(chunk.labels[row]);
    const auto numbers = chunk.numeric.begin() + static_cast<ptrdiff_t>(row * numeric_count_);
    batch->numeric.insert(batch->numeric.end(), numbers, numbers + numeric_count_);
    ReadKeys(chunk, row, batch);
    if (grouped_) batch->groups.push_back(chunk.groups[row]);
    batch->offsets.push_back(static_cast<uint32_t>(batch->keys.size()));
  }
}

}  // namespace lodestone::worker
