// Collecting and restoring what a checkpoint keeps of an embedding table.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"
#include "common/wire/shard_map.h"
#include "server/table/embedding_restoring.h"

namespace lodestone::server {
namespace {

absl::Status PageError(const Table& table, uint32_t page, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("table `", table.name(), "`, page ", page, ": ", what));
}

absl::Status TableError(const Table& table, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("table `", table.name(), "`: ", what));
}

}  // namespace

EmbeddingTable::State EmbeddingTable::CollectState(const Version* after) const {
  // A page's usage is written as it lies here.
  static_assert(std::endian::native == std::endian::little && sizeof(Usage) == 2 * sizeof(uint32_t));
  State state;
  state.updates = updates_;
  state.made_ms = made_ms_;
  state.pages_total = static_cast<uint32_t>(pages_.size());
  if (after == nullptr) state.pages.reserve(pages_.size());
  for (uint32_t p = 0; p < pages_.size(); ++p) {
    const Page& page = pages_[p];
    if (after != nullptr && page.version <= *after) continue;
    state.pages.push_back({p, page.buffer, page.version});
    page.may_be_shared = true;
  }
  if (track_usage_) {
    state.usage.resize(state.pages.size() * layout_.rows());
    for (size_t i = 0; i < state.pages.size(); ++i) {
      const Usage* const usage = usage_[state.pages[i].index].get();
      std::copy_n(usage, layout_.rows(), &state.usage[i * layout_.rows()]);
    }
  }
  state.candidates.assign(candidates_.begin(), candidates_.end());
  return state;
}

absl::Status EmbeddingTable::RestoreRows(const v1::RowsTable& header, ShardId shard) {
  if (restoring_ == nullptr) restoring_ = std::make_unique<Restoring>();
  if (restoring_->has_header) return TableError(*table_, "is there twice");
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
    if (!restoring_->candidates.try_emplace(key, header.candidate_counts(i)).second) {
      return TableError(*table_, absl::StrCat("key ", key, ", not admitted, is there twice"));
    }
  }
  restoring_->has_header = true;
  restoring_->updates = header.updates();
  restoring_->made_ms = header.made_ms();
  restoring_->pages_total = header.pages();
  return absl::OkStatus();
}

absl::Status EmbeddingTable::RestorePage(const v1::RowsPage& header, std::span<const uint8_t> payload) {
  if (restoring_ == nullptr) restoring_ = std::make_unique<Restoring>();
  const size_t page_bytes = layout_.bytes();
  const size_t usage_bytes = track_usage_ ? layout_.rows() * sizeof(Usage) : 0;
  if (payload.size() != page_bytes + usage_bytes) {
    return PageError(*table_, header.page(),
                     absl::StrCat("has ", payload.size(), " bytes, not ", page_bytes + usage_bytes));
  }
  const auto [part, inserted] = restoring_->parts.try_emplace(header.page());
  if (!inserted) return PageError(*table_, header.page(), "is there twice");
  part->second.version = header.version();
  part->second.page = BufferRef::NewKept(page_bytes);
  std::memcpy(part->second.page->bytes(), payload.data(), page_bytes);
  if (track_usage_) {
    part->second.usage = std::make_unique<Usage[]>(layout_.rows());
    std::memcpy(part->second.usage.get(), payload.data() + page_bytes, usage_bytes);
  }
  return absl::OkStatus();
}

absl::Status EmbeddingTable::PrepareRestored(ShardId shard, Version version) {
  if (restoring_ == nullptr) return absl::OkStatus();
  Restoring& restoring = *restoring_;
  if (!restoring.has_header) return TableError(*table_, "has pages but no header");
  for (const auto& [p, part] : restoring.parts) {
    if (p >= restoring.pages_total) {
      return PageError(*table_, p, absl::StrCat("is beyond the table's ", restoring.pages_total));
    }
    if (part.version > version) {
      return PageError(*table_, p, absl::StrCat("is of version ", part.version, ", the shard of ", version));
    }
  }
  if (restoring.parts.size() == restoring.pages_total) {
    restoring.index.Reserve(uint64_t{restoring.pages_total} << layout_.rows_log2);
  }
  for (uint32_t p = 0; p < restoring.pages_total; ++p) {
    const auto part = restoring.parts.find(p);
    if (part == restoring.parts.end()) return PageError(*table_, p, "is missing");
    const BufferRef& page = part->second.page;
    for (uint32_t i = 0; i < layout_.rows(); ++i) {
      if (layout_.Changed(page)[i] == 0) continue;
      const Key key = layout_.Keys(page)[i];
      if (i + kBatchRows < layout_.rows()) restoring.index.Prepare(layout_.Keys(page)[i + kBatchRows]);
      if (ShardOfKey(key, table_->shards()) != shard) {
        return PageError(*table_, p, absl::StrCat("key ", key, " is not of shard ", shard));
      }
      if (restoring.index.Find(key) != kNoRow)
        return PageError(*table_, p, absl::StrCat("key ", key, " is there twice"));
      if (restoring.index.full()) restoring.index.Grow();
      restoring.index.Insert(key, static_cast<RowId>((p << layout_.rows_log2) + i));
    }
  }
  // The first free row is taken first, as in a table that was never restored.
  for (uint32_t p = restoring.pages_total; p-- > 0;) {
    const BufferRef& page = restoring.parts.find(p)->second.page;
    for (uint32_t i = layout_.rows(); i-- > 0;) {
      if (layout_.Changed(page)[i] == 0) restoring.free.push_back(static_cast<RowId>((p << layout_.rows_log2) + i));
    }
  }
  restoring.prepared = true;
  return absl::OkStatus();
}

void EmbeddingTable::CommitRestored(Version version) {
  evictions_known_since_ = version;
  if (restoring_ == nullptr) return;
  Restoring& restoring = *restoring_;
  LODESTONE_CHECK(restoring.prepared && pages_.empty());
  updates_ = restoring.updates;
  made_ms_ = restoring.made_ms;
  candidates_ = std::move(restoring.candidates);
  index_ = std::move(restoring.index);
  free_ = std::move(restoring.free);
  pages_.reserve(restoring.pages_total);
  for (uint32_t p = 0; p < restoring.pages_total; ++p) {
    Restoring::Part& part = restoring.parts.find(p)->second;
    pages_.push_back({std::move(part.page), part.version});
    if (track_usage_) usage_.push_back(std::move(part.usage));
  }
  restoring_.reset();
  CountBytes();
}

void EmbeddingTable::CommitRollback(Version version, uint64_t now_ms) {
  updates_ = 0;
  made_ms_ = now_ms;
  candidates_.clear();
  index_ = RowIndex();
  free_.clear();
  pages_.clear();
  usage_.clear();
  evicted_.clear();
  CommitRestored(version);
  for (Page& page : pages_) {
    page.version = version;
    uint32_t* const changed = layout_.Changed(page.buffer);
    for (uint32_t i = 0; i < layout_.rows(); ++i) {
      if (changed[i] != 0) changed[i] = ChangedStamp(version);
    }
  }
  CountBytes();
}

void EmbeddingTable::AbandonRestored() { restoring_.reset(); }

}  // namespace lodestone::server
