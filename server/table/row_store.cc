#include "server/table/row_store.h"

#include <cstring>
#include <utility>

#include "common/base/row_copy.h"

namespace lodestone::server {

RowStore::RowStore(const PageLayout& layout, RowIndex index, std::vector<Page> pages, std::vector<RowId> free)
    : layout_(layout), index_(std::move(index)), pages_(std::move(pages)), free_(std::move(free)) {}

uint64_t RowStore::bytes() const {
  return pages_.size() * PageBytes(layout_) + index_.bytes() + free_.capacity() * sizeof(RowId);
}

uint64_t RowStore::BytesFor(size_t rows) const {
  const size_t pages = PagesFor(rows);
  const size_t free_list = pages == 0 ? 0 : std::max<size_t>(free_.capacity(), layout_.rows()) - free_.capacity();
  return pages * PageBytes(layout_) + index_.BytesWith(size() + rows) - index_.bytes() + free_list * sizeof(RowId);
}

void RowStore::FindRows(Batch* batch) const {
  // Copies, which the compiler knows not to change when the batch is written.
  const PageLayout layout = layout_;
  const Page* const pages = pages_.data();
  const uint8_t* const keys = batch->keys;
  const size_t count = batch->count;
  uint32_t homes[kBatchRows];
  for (size_t i = 0; i < count; ++i) homes[i] = index_.Prepare(LoadAt<Key>(keys, i));
  for (size_t i = 0; i < count; ++i) {
    const RowId row = index_.FindMoved(LoadAt<Key>(keys, i), homes[i]);
    batch->rows[i] = row;
    if (row == kNoRow) continue;
    const BufferRef& page = pages[row >> layout.rows_log2].buffer;
    const uint32_t place = row & (layout.rows() - 1);
    PrefetchRow(layout.Row(page, place), layout.row_floats * sizeof(float));
    __builtin_prefetch(&layout.Changed(page)[place]);
  }
  for (size_t i = 0; index_.grows() && i < count; ++i) {
    if (batch->rows[i] == kNoRow) batch->rows[i] = index_.FindUnmoved(LoadAt<Key>(keys, i));
  }
  batch->erased = erased_;
}

RowStore::Inserted RowStore::Insert(Key key, Version version) {
  if (index_.full()) index_.Grow();
  const RowId row = TakeFreeRow();
  float* const floats = Touch(row, version);
  layout_.Keys(pages_[PageOf(row)].buffer)[PlaceOf(row)] = key;
  index_.Insert(key, row);
  return {row, floats};
}

RowId RowStore::TakeFreeRow() {
  if (free_.empty()) {
    const RowId first = static_cast<RowId>(pages_.size() << layout_.rows_log2);
    BufferRef page = BufferRef::NewKept(layout_.bytes());
    std::memset(layout_.Keys(page), 0, layout_.rows() * (sizeof(Key) + sizeof(uint32_t)));
    pages_.push_back({std::move(page)});
    for (uint32_t i = layout_.rows(); i-- > 0;) free_.push_back(first + i);
  }
  const RowId row = free_.back();
  free_.pop_back();
  return row;
}

void RowStore::Unshare(Page* page) {
  if (!page->buffer.unique()) {
    BufferRef fresh = BufferRef::NewKept(layout_.bytes());
    std::memcpy(fresh->bytes(), page->buffer->bytes(), layout_.bytes());
    page->buffer = std::move(fresh);
  }
  page->may_be_shared = false;
}

void RowStore::Erase(RowId row, Version version) {
  Touch(row, version);
  const BufferRef& page = pages_[PageOf(row)].buffer;
  layout_.Changed(page)[PlaceOf(row)] = 0;
  index_.Erase(layout_.Keys(page)[PlaceOf(row)]);
  free_.push_back(row);
  ++erased_;
}

void RowStore::StampAll(Version version) {
  for (Page& page : pages_) {
    page.version = version;
    uint32_t* const changed = layout_.Changed(page.buffer);
    for (uint32_t i = 0; i < layout_.rows(); ++i) {
      if (changed[i] != 0) changed[i] = ChangedStamp(version);
    }
  }
}

}  // namespace lodestone::server
