#include "worker/data/stored_dataset.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "common/base/check.h"
#include "worker/data/label_counts.h"

namespace lodestone::worker {
namespace {

template <typename T>
char* Put(const std::vector<T>& array, char* at) {
  if (!array.empty()) std::memcpy(at, array.data(), array.size() * sizeof(T));
  return at + array.size() * sizeof(T);
}

// The next array of `count`; moves *at behind it.
template <typename T>
const T* Take(uint64_t count, const char** at) {
  const T* const array = reinterpret_cast<const T*>(*at);
  *at += count * sizeof(T);
  return array;
}

}  // namespace

uint64_t StoredDataset::OpenBytes() const {
  return open_.labels.size() * sizeof(float) + open_.numeric.size() * sizeof(float) +
         open_.offsets.size() * sizeof(uint64_t) + open_.keys.size() * sizeof(Key) +
         open_.values.size() * sizeof(float) + open_.groups.size() * sizeof(uint64_t) +
         open_.field_keys.size() * sizeof(uint32_t) + open_.weights.size() * sizeof(float) +
         open_.several.size() * sizeof(float);
}

uint64_t StoredDataset::BytesOf(const Chunk& chunk) const {
  return chunk.features * (sizeof(Key) + (chunk.has_values ? sizeof(float) : 0)) +
         chunk.samples *
             (sizeof(float) * (1 + uint64_t{numeric_count_} + labels_) + sizeof(uint32_t) * uint64_t{fields_} +
              (sparse_ ? sizeof(uint64_t) : 0) + (grouped_ ? sizeof(uint64_t) : 0) + (weighted_ ? sizeof(float) : 0));
}

void StoredDataset::Append(float label, const ParsedLine& sample) {
  LODESTONE_CHECK(sample.numeric.size() == numeric_count_);
  LODESTONE_CHECK(sparse_ || sample.keys.size() == keys_per_sample_);
  LODESTONE_CHECK(sample.field_keys.size() == fields_);
  LODESTONE_CHECK(sample.labels.size() == labels_);
  if (open_.labels.size() == kChunkSamples) Seal();
  open_.labels.push_back(label);
  open_.numeric.insert(open_.numeric.end(), sample.numeric.begin(), sample.numeric.end());
  if (!sample.values.empty() && open_.values.empty()) open_.values.resize(open_.keys.size(), 1.0f);
  open_.keys.insert(open_.keys.end(), sample.keys.begin(), sample.keys.end());
  if (!sample.values.empty()) {
    open_.values.insert(open_.values.end(), sample.values.begin(), sample.values.end());
    has_values_ = true;
  } else if (!open_.values.empty()) {
    open_.values.resize(open_.keys.size(), 1.0f);
  }
  if (sparse_) open_.offsets.push_back(open_.keys.size());
  if (grouped_) open_.groups.push_back(sample.group);
  open_.field_keys.insert(open_.field_keys.end(), sample.field_keys.begin(), sample.field_keys.end());
  if (weighted_) open_.weights.push_back(sample.weight);
  open_.several.insert(open_.several.end(), sample.labels.begin(), sample.labels.end());
  ++size_;
}

void StoredDataset::Seal() {
  if (open_.labels.empty()) return;
  Chunk chunk;
  chunk.samples = static_cast<uint32_t>(open_.labels.size());
  chunk.has_values = !open_.values.empty();
  chunk.features = open_.keys.size();
  chunk.memory.reset(new char[BytesOf(chunk)]);
  char* at = chunk.memory.get();
  at = Put(open_.keys, at);
  at = Put(open_.offsets, at);
  at = Put(open_.groups, at);
  at = Put(open_.labels, at);
  at = Put(open_.numeric, at);
  at = Put(open_.values, at);
  at = Put(open_.field_keys, at);
  at = Put(open_.weights, at);
  at = Put(open_.several, at);
  LODESTONE_CHECK(at == chunk.memory.get() + BytesOf(chunk));
  memory_bytes_ += BytesOf(chunk);
  chunks_.push_back(std::move(chunk));
  in_memory_ = chunks_.size();
  open_.labels.clear();
  open_.numeric.clear();
  open_.offsets.clear();
  open_.keys.clear();
  open_.values.clear();
  open_.groups.clear();
  open_.field_keys.clear();
  open_.weights.clear();
  open_.several.clear();
}

StoredDataset::View StoredDataset::ViewOf(const Chunk& chunk, const char* at) const {
  View view{};
  view.keys = Take<Key>(chunk.features, &at);
  view.offsets = Take<uint64_t>(sparse_ ? chunk.samples : 0, &at);
  view.groups = Take<uint64_t>(grouped_ ? chunk.samples : 0, &at);
  view.labels = Take<float>(chunk.samples, &at);
  view.numeric = Take<float>(uint64_t{chunk.samples} * numeric_count_, &at);
  view.values = chunk.has_values ? Take<float>(chunk.features, &at) : nullptr;
  view.field_keys = Take<uint32_t>(uint64_t{chunk.samples} * fields_, &at);
  view.weights = Take<float>(weighted_ ? chunk.samples : 0, &at);
  view.several = Take<float>(uint64_t{chunk.samples} * labels_, &at);
  return view;
}

StoredDataset::View StoredDataset::ViewOf(uint64_t index) const {
  if (index == chunks_.size()) {
    return {.labels = open_.labels.data(),
            .numeric = open_.numeric.data(),
            .offsets = open_.offsets.data(),
            .keys = open_.keys.data(),
            .values = open_.values.empty() ? nullptr : open_.values.data(),
            .groups = open_.groups.data(),
            .field_keys = open_.field_keys.data(),
            .weights = open_.weights.data(),
            .several = open_.several.data(),
            .raw = false};
  }
  const Chunk& chunk = chunks_[index];
  View view = ViewOf(chunk, chunk.memory != nullptr ? chunk.memory.get() : spill_->data() + chunk.offset);
  view.raw = chunk.memory == nullptr;
  return view;
}

void StoredDataset::KeepEverySecond() {
  // Without memory for a mapping there is none for samples either.
  if (spill_ != nullptr && !spill_->Map().ok()) throw std::bad_alloc();
  StoredDataset kept(numeric_count_, keys_per_sample_, sparse_, grouped_, fields_ > 0, weighted_, labels_);
  Batch batch;
  ParsedLine sample;
  for (uint64_t i = 0; i < size_; i += 2) {
    Read({&i, 1}, &batch);
    sample.numeric = batch.numeric;
    sample.keys = batch.keys;
    sample.values = batch.values;
    sample.field_keys.clear();
    for (uint32_t f = 0; f < fields_; ++f) sample.field_keys.push_back(batch.offsets[f + 1] - batch.offsets[f]);
    if (grouped_) sample.group = batch.groups[0];
    if (weighted_) sample.weight = batch.weights[0];
    sample.labels.clear();
    for (uint32_t k = 0; k < labels_; ++k) {
      sample.labels.push_back(LabelOf(i, k));
    }
    kept.Append(labels_ > 0 ? 0 : batch.labels[0], sample);
  }
  size_ = kept.size_;
  memory_bytes_ = kept.memory_bytes_;
  has_values_ = kept.has_values_;
  chunks_ = std::move(kept.chunks_);
  open_ = std::move(kept.open_);
  in_memory_ = chunks_.size();
  spill_.reset();
}

absl::StatusOr<bool> StoredDataset::SpillNewest(const std::string& folder) {
  while (in_memory_ > 0 && chunks_[in_memory_ - 1].memory == nullptr) --in_memory_;
  if (in_memory_ == 0) return false;
  if (spill_ == nullptr) {
    absl::StatusOr<std::unique_ptr<SpillFile>> file = SpillFile::Create(folder);
    if (!file.ok()) return file.status();
    spill_ = *std::move(file);
  }
  Chunk& chunk = chunks_[--in_memory_];
  const uint64_t bytes = BytesOf(chunk);
  absl::StatusOr<uint64_t> offset = spill_->Append({chunk.memory.get(), bytes});
  if (!offset.ok()) return offset.status();
  chunk.offset = *offset;
  chunk.memory.reset();
  memory_bytes_ -= bytes;
  // The next chunk's 8-byte numbers are to be aligned.
  constexpr char kPadding[sizeof(uint64_t)] = {};
  if (bytes % sizeof(uint64_t) != 0) {
    offset = spill_->Append({kPadding, sizeof(uint64_t) - bytes % sizeof(uint64_t)});
    if (!offset.ok()) return offset.status();
  }
  return true;
}

absl::Status StoredDataset::Finish(std::vector<float> labels, const Standardizer& standardizer) {
  Seal();
  open_ = {};
  final_labels_ = std::move(labels);
  if (standardizer.active()) standardizer_.emplace(standardizer);
  for (Chunk& chunk : chunks_) {
    if (chunk.memory == nullptr) continue;
    const View view = ViewOf(chunk, chunk.memory.get());
    const auto final_labels = const_cast<float*>(view.labels), numeric = const_cast<float*>(view.numeric);
    for (size_t i = 0; i < chunk.samples; ++i) {
      if (!final_labels_.empty()) final_labels[i] = final_labels_[static_cast<size_t>(final_labels[i])];
      if (standardizer.active()) standardizer.Apply({numeric + i * numeric_count_, numeric_count_});
    }
  }
  return spill_ == nullptr ? absl::OkStatus() : spill_->Map();
}

void StoredDataset::ReadKeys(const View& view, uint64_t row, Batch* batch) const {
  const uint64_t begin = !sparse_ ? row * keys_per_sample_ : row == 0 ? 0 : view.offsets[row - 1];
  const uint64_t end = sparse_ ? view.offsets[row] : begin + keys_per_sample_;
  batch->keys.insert(batch->keys.end(), view.keys + begin, view.keys + end);
  if (!has_values_) return;
  if (view.values == nullptr) {
    batch->values.resize(batch->keys.size(), 1.0f);
  } else {
    batch->values.insert(batch->values.end(), view.values + begin, view.values + end);
  }
}

void StoredDataset::ReadOffsets(const View& view, uint64_t row, Batch* batch) const {
  if (fields_ == 0) batch->offsets.push_back(static_cast<uint32_t>(batch->keys.size()));
  for (uint32_t f = 0; f < fields_; ++f) {
    batch->offsets.push_back(batch->offsets.back() + view.field_keys[row * fields_ + f]);
  }
}

void StoredDataset::Read(std::span<const uint64_t> indices, Batch* batch) const {
  batch->size = indices.size();
  batch->labels.clear();
  batch->numeric.clear();
  batch->keys.clear();
  batch->values.clear();
  batch->groups.clear();
  batch->weights.clear();
  batch->label_weights.clear();
  batch->offsets.assign(1, 0);
  for (uint64_t index : indices) {
    const View view = ViewOf(index / kChunkSamples);
    const uint64_t row = index % kChunkSamples;
    const float label = view.labels[row];
    if (labels_ == 0) {
      batch->labels.push_back(view.raw && !final_labels_.empty() ? final_labels_[static_cast<size_t>(label)] : label);
    }
    const float* const numbers = view.numeric + row * numeric_count_;
    batch->numeric.insert(batch->numeric.end(), numbers, numbers + numeric_count_);
    if (view.raw && standardizer_.has_value()) {
      standardizer_->Apply({batch->numeric.data() + batch->numeric.size() - numeric_count_, numeric_count_});
    }
    ReadKeys(view, row, batch);
    if (grouped_) batch->groups.push_back(view.groups[row]);
    if (weighted_) batch->weights.push_back(view.weights[row]);
    ReadOffsets(view, row, batch);
  }
  if (labels_ > 0) ReadSeveralLabels(indices, batch);
}

void StoredDataset::ReadSeveralLabels(std::span<const uint64_t> indices, Batch* batch) const {
  batch->labels.resize(indices.size() * labels_);
  batch->label_weights.resize(indices.size() * labels_);
  for (size_t i = 0; i < indices.size(); ++i) {
    const View view = ViewOf(indices[i] / kChunkSamples);
    PutLabels({view.several + indices[i] % kChunkSamples * labels_, labels_}, weighted_ ? batch->weights[i] : 1.0f, i,
              indices.size(), batch->labels.data(), batch->label_weights.data());
  }
}

float StoredDataset::LabelOf(uint64_t index, uint32_t k) const {
  return ViewOf(index / kChunkSamples).several[index % kChunkSamples * labels_ + k];
}

void StoredDataset::WillRead(uint64_t first, uint64_t count) const {
  if (spill_ == nullptr || count == 0) return;
  uint64_t begin = 0, end = 0;  // Of the file: what lies together is read together.
  for (uint64_t c = first / kChunkSamples; c <= (first + count - 1) / kChunkSamples; ++c) {
    const Chunk& chunk = chunks_[c];
    if (chunk.memory != nullptr) continue;
    if (chunk.offset < end || chunk.offset > end + sizeof(uint64_t)) {
      if (end > begin) spill_->WillRead(begin, end - begin);
      begin = chunk.offset;
    }
    end = chunk.offset + BytesOf(chunk);
  }
  if (end > begin) spill_->WillRead(begin, end - begin);
}

}  // namespace lodestone::worker
