// Samples in chunks of compact arrays: nothing is copied as the data grows. Chunks that memory has no room for are kept
// in a file, of the same layout, and read where they lie.
//
// Thread-safe once it is finished: all but Append, KeepEverySecond, SpillNewest and Finish only read. Owns its samples.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/data/dataset.h"
#include "worker/data/line_parser.h"
#include "worker/data/spill_file.h"
#include "worker/data/transform.h"

namespace lodestone::worker {

class StoredDataset final : public Dataset {
 public:
  // `keys_per_sample` is what every sample has, unless `sparse`, or `several`: then each of so many fields has one and
  // more.
  // `labels`: of samples with several; 0: they have one.
  StoredDataset(uint32_t numeric_count, uint32_t keys_per_sample, bool sparse, bool grouped = false,
                bool several = false, bool weighted = false, uint32_t labels = 0)
      : numeric_count_(numeric_count),
        keys_per_sample_(keys_per_sample),
        sparse_(sparse || several),
        grouped_(grouped),
        weighted_(weighted),
        fields_(several ? keys_per_sample : 0),
        labels_(labels) {}

  // Adds a sample; `label` is not read where there are several. REQUIRES: as many numbers, keys, fields and labels as
  // given to the constructor.
  void Append(float label, const ParsedLine& sample);

  // Removes the second of every two samples; those that stay are in memory. REQUIRES: before Finish.
  void KeepEverySecond();

  // Bytes that the samples take in memory, and in the file.
  uint64_t bytes() const { return memory_bytes_ + OpenBytes(); }
  uint64_t spilled_bytes() const { return spill_ == nullptr ? 0 : spill_->bytes(); }

  // Moves the newest whole chunk that is in memory into a file in `folder`; false if there is none. An error is
  // SpillFile's. REQUIRES: before Finish.
  absl::StatusOr<bool> SpillNewest(const std::string& folder);

  // Replaces every label by its number in `labels` (LabelIndex::Table), and standardizes every row, once all are there:
  // of samples in the file whenever they are read.
  absl::Status Finish(std::vector<float> labels, const Standardizer& standardizer);

  uint64_t size() const override { return size_; }
  // REQUIRES: Finish was called, or nothing was spilled.
  void Read(std::span<const uint64_t> indices, Batch* batch) const override;
  void WillRead(uint64_t first, uint64_t count) const override;

  // Samples of a whole chunk: few enough that a run of them is read from a disk in one go.
  static constexpr uint64_t kChunkSamples = 1 << 10;

 private:
  // The arrays of a chunk, one after another: those of 8-byte numbers first.
  struct Chunk {
    uint32_t samples = 0;
    bool has_values = false;         // Values other than 1.
    uint64_t features = 0;           // Of all samples.
    std::unique_ptr<char[]> memory;  // Null: it is in the file,
    uint64_t offset = 0;             // here.
  };
  // The last chunk while it grows.
  struct OpenChunk {
    std::vector<float> labels;
    std::vector<float> numeric;
    std::vector<uint64_t> offsets;  // Only if sparse: where each sample's keys end.
    std::vector<Key> keys;
    std::vector<float> values;         // Beside keys; empty if all are 1.
    std::vector<uint64_t> groups;      // Only if grouped.
    std::vector<uint32_t> field_keys;  // [samples, fields_]
    std::vector<float> weights;        // Only if weighted.
    std::vector<float> several;        // [samples, labels_]
  };
  struct View {
    const float* labels;
    const float* numeric;
    const uint64_t* offsets;
    const Key* keys;
    const float* values;  // Null: all are 1.
    const uint64_t* groups;
    const uint32_t* field_keys;
    const float* weights;
    const float* several;
    bool raw;  // Labels and numbers are as they were appended.
  };

  uint64_t OpenBytes() const;
  uint64_t BytesOf(const Chunk& chunk) const;
  // Makes a chunk of the open one.
  void Seal();
  View ViewOf(uint64_t chunk) const;
  View ViewOf(const Chunk& chunk, const char* at) const;
  void ReadKeys(const View& view, uint64_t row, Batch* batch) const;
  void ReadOffsets(const View& view, uint64_t row, Batch* batch) const;
  void ReadSeveralLabels(std::span<const uint64_t> indices, Batch* batch) const;
  // One of several labels of a sample, as it was appended.
  float LabelOf(uint64_t index, uint32_t k) const;

  const uint32_t numeric_count_;
  const uint32_t keys_per_sample_;
  const bool sparse_;      // Samples have any number of keys.
  const bool grouped_;     // Samples have groups.
  const bool weighted_;    // Samples have weights.
  const uint32_t fields_;  // Whose numbers of keys are kept; 0: each has one.
  const uint32_t labels_;  // Of samples with several; 0: they have one.
  uint64_t size_ = 0;
  uint64_t memory_bytes_ = 0;  // Of chunks_ that are in memory.
  bool has_values_ = false;    // Some chunk has values other than 1.
  std::vector<Chunk> chunks_;  // Whole ones, and after Finish the rest.
  OpenChunk open_;
  size_t in_memory_ = 0;              // No chunk from here on is in memory.
  std::unique_ptr<SpillFile> spill_;  // Null until it is needed.
  std::vector<float> final_labels_;   // By provisional label; empty: they are final.
  std::optional<Standardizer> standardizer_;
};

}  // namespace lodestone::worker
