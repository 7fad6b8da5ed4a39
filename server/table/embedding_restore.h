// The restoring of one shard's part of an embedding table from what a checkpoint keeps of it: what is given is gathered
// and checked, and the table changes only when all of it is good.
//
// Not thread-safe: owned by the table's shard. `table` must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/base/types.h"
#include "proto/checkpoint.pb.h"
#include "server/table/counted_buffer.h"
#include "server/table/eviction_policy.h"
#include "server/table/page_layout.h"
#include "server/table/row_store.h"

namespace lodestone::server {

class Table;
struct TableSettings;

class EmbeddingRestore {
 public:
  EmbeddingRestore(const Table* table, const PageLayout& layout) : table_(table), layout_(layout) {}

  // The table's header and its pages, in any order. INVALID_ARGUMENT, naming the table and page, if what is given is
  // not of this table or there twice.
  absl::Status AddHeader(const v1::RowsTable& header, ShardId shard);
  absl::Status AddPage(const v1::RowsPage& header, std::span<const uint8_t> payload);
  // Checks everything together and makes the index. INVALID_ARGUMENT as above, or if something is missing.
  absl::Status Prepare(ShardId shard, Version version);

  // What was restored; the last two can be taken once. REQUIRES: Prepare was OK.
  uint64_t updates() const { return updates_; }
  RowStore TakeRows();
  EvictionPolicy TakePolicy(const TableSettings* settings);

 private:
  struct Part {
    BufferRef page;
    Version version = 0;
    EvictionPolicy::PageUsage usage;
  };

  absl::Status CheckParts(Version version) const;
  absl::Status IndexPage(uint32_t p, const BufferRef& page, ShardId shard);

  const Table* const table_;
  const PageLayout layout_;

  // From the table's header.
  bool has_header_ = false;
  uint64_t updates_ = 0;
  uint64_t made_ms_ = 0;
  uint32_t pages_total_ = 0;
  EvictionPolicy::Candidates candidates_;

  absl::flat_hash_map<uint32_t, Part> parts_;  // By page. The header's number of pages is not believed.

  // From Prepare.
  bool prepared_ = false;
  RowIndex index_;
  std::vector<RowId> free_;
};

}  // namespace lodestone::server
