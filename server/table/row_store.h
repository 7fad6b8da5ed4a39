// The rows of one shard of an embedding table: an index over copy-on-write pages.
//
// Keys are looked up in batches, so that their cache misses overlap: first those of the index, then those of the rows.
//
// Not thread-safe: owned by the shard's executor. Pages that a snapshot holds may be read anywhere.
// Ownership: a page lives as long as there is a reference to it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/byte_view.h"
#include "common/base/types.h"
#include "common/wire/message.h"
#include "server/table/counted_buffer.h"
#include "server/table/page_layout.h"
#include "server/table/row_index.h"

namespace lodestone::server {

class RowStore {
 public:
  struct Page {
    BufferRef buffer;
    Version version : 63 = 0;  // When it last changed.
    // A snapshot may hold it too. Other pages are written without a look at their references, which would be a cache
    // miss for each row.
    mutable bool may_be_shared : 1 = false;
  };
  static constexpr size_t kBatchRows = 32;
  struct Batch {
    size_t begin = 0;  // Of its keys among all.
    size_t count = 0;
    const uint8_t* keys = nullptr;  // Not aligned.
    uint64_t erased = 0;            // RowStore::erased() when the rows were found.
    RowId rows[kBatchRows];
    uint8_t straddling[kBatchRows * sizeof(Key)];  // The keys, if they lie in several runs.
  };

  explicit RowStore(const PageLayout& layout) : layout_(layout) {}
  // What was restored: REQUIRES: they agree with each other.
  RowStore(const PageLayout& layout, RowIndex index, std::vector<Page> pages, std::vector<RowId> free);

  const PageLayout& layout() const { return layout_; }
  const RowIndex& index() const { return index_; }
  const std::vector<Page>& pages() const { return pages_; }
  size_t size() const { return index_.size(); }
  // Bytes that it takes, pages with what the allocator adds.
  uint64_t bytes() const;
  // Pages that so many more rows need; and bytes, the pages' and the index's.
  size_t PagesFor(size_t rows) const {
    return rows <= free_.size() ? 0 : (rows - free_.size() + layout_.rows() - 1) >> layout_.rows_log2;
  }
  uint64_t BytesFor(size_t rows) const;
  // Bytes of a page, with what the allocator adds.
  static uint64_t PageBytes(const PageLayout& layout) {
    return layout.bytes() + CountedBuffer::kAlignment + sizeof(Page);
  }
  // Rows, since this store was made.
  uint64_t erased() const { return erased_; }

  // Brings into the cache what the look-ups of ForEachBatch with these keys start from, if they are so few that none
  // would be under way while others are worked on.
  void Prefetch(ByteView keys, size_t count) const {
    if (count > kBatchRows) return;
    const ByteView::Run run = keys.front();
    count = std::min(count, run.size / sizeof(Key));
    for (size_t i = 0; i < count; ++i) index_.Prepare(LoadAt<Key>(run.data, i));
  }
  // Calls visit(batch) for all of `count` unaligned keys, in order. It may insert and erase rows.
  template <typename Visit>
  void ForEachBatch(ByteView keys, size_t count, const Visit& visit) const {
    Batch batch;
    for (; batch.begin < count; batch.begin += batch.count) {
      batch.count = std::min(kBatchRows, count - batch.begin);
      batch.keys = TakeBytes(batch.count * sizeof(Key), &keys, batch.straddling);
      FindRows(&batch);
      Prefetch(keys, std::min(kBatchRows, count - batch.begin - batch.count));  // The next batch's.
      visit(batch);
    }
  }
  // The next `bytes` of `view`: where they lie, or, if they do not lie together, copied to `scratch`.
  static const uint8_t* TakeBytes(size_t bytes, ByteView* view, uint8_t* scratch) {
    const ByteView taken = view->Take(bytes);
    if (taken.contiguous() != nullptr) return taken.contiguous();
    taken.CopyTo(scratch);
    return scratch;
  }

  // The row of a key; kNoRow if it has none.
  RowId Find(Key key) const { return index_.Find(key); }
  Key KeyOf(RowId row) const { return layout_.Keys(pages_[PageOf(row)].buffer)[PlaceOf(row)]; }
  size_t PageOf(RowId row) const { return row >> layout_.rows_log2; }
  uint32_t PlaceOf(RowId row) const { return row & (layout_.rows() - 1); }

  // Calls visit(key, row) for all rows of a page, or of its places from `begin` on and before `end`, by number.
  template <typename Visit>
  void ForEachRowOf(size_t page, const Visit& visit) const {
    ForEachRowOf(page, 0, layout_.rows(), visit);
  }
  template <typename Visit>
  void ForEachRowOf(size_t page, uint32_t begin, uint32_t end, const Visit& visit) const {
    const uint32_t* const changed = layout_.Changed(pages_[page].buffer);
    const Key* const keys = layout_.Keys(pages_[page].buffer);
    for (uint32_t i = begin; i < end; ++i) {
      if (changed[i] != 0) visit(keys[i], static_cast<RowId>((page << layout_.rows_log2) + i));
    }
  }

  // Calls visit(number, page) for the pages that changed after `after` (all if null), which a snapshot may then hold.
  template <typename Visit>
  void SharePages(const Version* after, const Visit& visit) const {
    for (uint32_t p = 0; p < pages_.size(); ++p) {
      const Page& page = pages_[p];
      if (after != nullptr && page.version <= *after) continue;
      page.may_be_shared = true;
      visit(p, page);
    }
  }

  // Makes the row's page writable (copies it if it is shared), stamps row and page as changed at `version` and returns
  // the row.
  float* Touch(RowId row, Version version) {
    Page& page = pages_[PageOf(row)];
    if (page.may_be_shared) Unshare(&page);
    page.version = version;
    const uint32_t place = PlaceOf(row);
    layout_.Changed(page.buffer)[place] = ChangedStamp(version);
    return layout_.Row(page.buffer, place);
  }

  // Makes a row, and a page if none is free; what its floats are is left to the caller. REQUIRES: `key` has none.
  struct Inserted {
    RowId row = kNoRow;
    float* floats = nullptr;
  };
  Inserted Insert(Key key, Version version);
  void Erase(RowId row, Version version);
  // Goes on with a growth of the index by so many of its buckets, if one is under way.
  void ContinueGrowth(size_t buckets) { index_.MoveFormer(buckets); }
  // Stamps all rows and pages as changed at `version`. REQUIRES: no page is shared.
  void StampAll(Version version);

 private:
  void FindRows(Batch* batch) const;
  RowId TakeFreeRow();
  void Unshare(Page* page);

  PageLayout layout_;
  RowIndex index_;
  std::vector<Page> pages_;
  std::vector<RowId> free_;
  uint64_t erased_ = 0;
};

}  // namespace lodestone::server
