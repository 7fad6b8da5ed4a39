#include "server/table/embedding_restore.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/wire/shard_map.h"
#include "server/table/table.h"

namespace lodestone::server {
namespace {

absl::Status PageError(const Table& table, uint32_t page, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("table `", table.name(), "`, page ", page, ": ", what));
}

absl::Status TableError(const Table& table, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("table `", table.name(), "`: ", what));
}

}  // namespace

absl::Status EmbeddingRestore::AddHeader(const v1::RowsTable& header, ShardId shard) {
  if (has_header_) return TableError(*table_, "is there twice");
  if (header.rows_log2() != layout_.rows_log2 || header.row_floats() != layout_.row_floats) {
    return TableError(
        *table_, absl::StrCat("has 2^", header.rows_log2(), " rows of ", header.row_floats(),
                              " floats per page; this program has 2^", layout_.rows_log2, " of ", layout_.row_floats));
  }
  if (uint64_t{header.pages()} << layout_.rows_log2 >= kNoRow) {
    return TableError(*table_, absl::StrCat(header.pages(), " pages are more rows than a shard can have"));
  }
  if (header.candidate_keys_size() != header.candidate_counts_size()) {
    return TableError(*table_, absl::StrCat(header.candidate_keys_size(), " keys wait for admission, and ",
                                            header.candidate_counts_size(), " have counts"));
  }
  for (int i = 0; i < header.candidate_keys_size(); ++i) {
    const Key key = header.candidate_keys(i);
    if (ShardOfKey(key, table_->shards()) != shard) {
      return TableError(*table_, absl::StrCat("key ", key, ", not admitted, is not of shard ", shard));
    }
    if (!candidates_.try_emplace(key, header.candidate_counts(i)).second) {
      return TableError(*table_, absl::StrCat("key ", key, ", not admitted, is there twice"));
    }
  }
  has_header_ = true;
  updates_ = header.updates();
  made_ms_ = header.made_ms();
  pages_total_ = header.pages();
  return absl::OkStatus();
}

absl::Status EmbeddingRestore::AddPage(const v1::RowsPage& header, std::span<const uint8_t> payload) {
  const bool tracks_usage = EvictionPolicy::TracksUsage(*table_);
  const size_t page_bytes = layout_.bytes();
  const size_t usage_bytes = tracks_usage ? layout_.rows() * sizeof(EvictionPolicy::Usage) : 0;
  if (payload.size() != page_bytes + usage_bytes) {
    return PageError(*table_, header.page(),
                     absl::StrCat("has ", payload.size(), " bytes, not ", page_bytes + usage_bytes));
  }
  const auto [part, inserted] = parts_.try_emplace(header.page());
  if (!inserted) return PageError(*table_, header.page(), "is there twice");
  part->second.version = header.version();
  part->second.page = BufferRef::NewKept(page_bytes);
  std::memcpy(part->second.page->bytes(), payload.data(), page_bytes);
  if (tracks_usage) {
    part->second.usage = std::make_unique<EvictionPolicy::Usage[]>(layout_.rows());
    std::memcpy(part->second.usage.get(), payload.data() + page_bytes, usage_bytes);
  }
  return absl::OkStatus();
}

absl::Status EmbeddingRestore::Prepare(ShardId shard, Version version) {
  if (!has_header_) return TableError(*table_, "has pages but no header");
  LODESTONE_RETURN_IF_ERROR(CheckParts(version));
  if (parts_.size() == pages_total_) index_.Reserve(uint64_t{pages_total_} << layout_.rows_log2);
  for (uint32_t p = 0; p < pages_total_; ++p) {
    const auto part = parts_.find(p);
    if (part == parts_.end()) return PageError(*table_, p, "is missing");
    LODESTONE_RETURN_IF_ERROR(IndexPage(p, part->second.page, shard));
  }
  // The first free row is taken first, as in a table that was never restored.
  for (uint32_t p = pages_total_; p-- > 0;) {
    const BufferRef& page = parts_.find(p)->second.page;
    for (uint32_t i = layout_.rows(); i-- > 0;) {
      if (layout_.Changed(page)[i] == 0) free_.push_back(static_cast<RowId>((p << layout_.rows_log2) + i));
    }
  }
  prepared_ = true;
  return absl::OkStatus();
}

absl::Status EmbeddingRestore::CheckParts(Version version) const {
  for (const auto& [p, part] : parts_) {
    if (p >= pages_total_) return PageError(*table_, p, absl::StrCat("is beyond the table's ", pages_total_));
    if (part.version > version) {
      return PageError(*table_, p, absl::StrCat("is of version ", part.version, ", the shard of ", version));
    }
  }
  return absl::OkStatus();
}

absl::Status EmbeddingRestore::IndexPage(uint32_t p, const BufferRef& page, ShardId shard) {
  for (uint32_t i = 0; i < layout_.rows(); ++i) {
    if (layout_.Changed(page)[i] == 0) continue;
    const Key key = layout_.Keys(page)[i];
    if (i + RowStore::kBatchRows < layout_.rows()) index_.Prepare(layout_.Keys(page)[i + RowStore::kBatchRows]);
    if (ShardOfKey(key, table_->shards()) != shard) {
      return PageError(*table_, p, absl::StrCat("key ", key, " is not of shard ", shard));
    }
    if (index_.Find(key) != kNoRow) return PageError(*table_, p, absl::StrCat("key ", key, " is there twice"));
    if (index_.full()) index_.Grow();
    index_.Insert(key, static_cast<RowId>((p << layout_.rows_log2) + i));
  }
  return absl::OkStatus();
}

RowStore EmbeddingRestore::TakeRows() {
  LODESTONE_CHECK(prepared_);
  std::vector<RowStore::Page> pages;
  pages.reserve(pages_total_);
  for (uint32_t p = 0; p < pages_total_; ++p) {
    Part& part = parts_.find(p)->second;
    pages.push_back({std::move(part.page), part.version});
  }
  return RowStore(layout_, std::move(index_), std::move(pages), std::move(free_));
}

EvictionPolicy EmbeddingRestore::TakePolicy(const TableSettings* settings) {
  LODESTONE_CHECK(prepared_);
  std::vector<EvictionPolicy::PageUsage> usage;
  if (EvictionPolicy::TracksUsage(*table_)) {
    usage.reserve(pages_total_);
    for (uint32_t p = 0; p < pages_total_; ++p) usage.push_back(std::move(parts_.find(p)->second.usage));
  }
  return EvictionPolicy(table_, settings, layout_, made_ms_, std::move(candidates_), std::move(usage));
}

}  // namespace lodestone::server
