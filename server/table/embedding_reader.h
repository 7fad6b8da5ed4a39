// A read of embedding rows: three batches of look-ups are under way at a time, so that the cache misses of each overlap
// with the work on the others. A message has few keys of each shard, so that batches go on from one shard to the next.
//
// Not thread-safe: belongs to one read on the executor that owns all its tables.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/byte_view.h"
#include "server/table/embedding_table.h"

namespace lodestone::server {

class EmbeddingReader {
 public:
  using Wanted = EmbeddingTable::Wanted;

  EmbeddingReader(std::span<const Wanted> wanted, uint64_t now_ms);

  // Copies all rows. Call once.
  void Run();

 private:
  // Measured, 8 to 64: the processor has room for about two dozen cache misses at a time, and those of two batches, in
  // the index and in the pages, are under way together.
  static constexpr size_t kBatchRows = 12;

  // Adjacent keys of one table.
  struct Segment {
    EmbeddingTable* table = nullptr;
    size_t end = 0;  // In the batch's arrays; it begins where the one before ends.
    float* dst = nullptr;
  };
  struct Batch {
    size_t keys_count = 0;
    size_t segments_count = 0;
    std::array<Segment, kBatchRows> segments;
    std::array<Key, kBatchRows> keys;
    std::array<uint32_t, kBatchRows> homes;
    std::array<RowId, kBatchRows> rows;
    std::array<const float*, kBatchRows> values;
  };

  // Takes the next keys, and fetches their places in the index.
  void Fill(Batch* batch);
  // Looks the keys up, and fetches their rows.
  static void Find(Batch* batch);
  void Copy(const Batch& batch) const;

  std::span<const Wanted> wanted_;
  const uint64_t now_ms_;
  size_t next_ = 0;   // Of wanted_, from which the next keys are taken;
  size_t taken_ = 0;  // how many of its keys have been,
  ByteView keys_;     // and those that are left.
  std::array<Batch, 3> batches_;
};

}  // namespace lodestone::server
