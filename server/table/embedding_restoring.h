// What an EmbeddingTable gathers while it is restored. Included by embedding_table.cc and embedding_state.cc only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "server/table/embedding_table.h"

namespace lodestone::server {

struct EmbeddingTable::Restoring {
  struct Part {
    BufferRef page;
    Version version = 0;
    std::unique_ptr<Usage[]> usage;
  };
  // From the table's header.
  bool has_header = false;
  uint64_t updates = 0;
  uint64_t made_ms = 0;
  uint32_t pages_total = 0;
  absl::flat_hash_map<Key, uint32_t> candidates;

  absl::flat_hash_map<uint32_t, Part> parts;  // By page. The header's number of pages is not believed.

  // From PrepareRestored.
  bool prepared = false;
  RowIndex index;
  std::vector<RowId> free;
};

}  // namespace lodestone::server
