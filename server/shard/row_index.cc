#include "server/shard/row_index.h"

namespace lodestone {

void RowIndex::Allocate(size_t capacity) {
  capacity_ = capacity;
  size_ = 0;
  tags_ = std::make_unique<uint8_t[]>(capacity);
  rows_ = std::make_unique_for_overwrite<RowId[]>(capacity);
}

void RowIndex::Grow() { Allocate(capacity_ + capacity_ / 4 + kCapacityMin); }

void RowIndex::Insert(Key key, RowId row) {
  const Probe probe = Prepare(key);
  size_t at = probe.at;
  while (tags_[at] != 0) at = Next(at);
  tags_[at] = probe.tag;
  rows_[at] = row;
  ++size_;
}

}  // namespace lodestone
