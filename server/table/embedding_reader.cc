#include "server/table/embedding_reader.h"

#include <algorithm>

#include "common/base/row_copy.h"

namespace lodestone::server {

EmbeddingReader::EmbeddingReader(std::span<const Wanted> wanted, uint64_t now_ms) : wanted_(wanted), now_ms_(now_ms) {
  while (!wanted_.empty() && wanted_.front().count == 0) wanted_ = wanted_.subspan(1);
}

void EmbeddingReader::Run() {
  for (size_t turn = 0;; ++turn) {
    Fill(&batches_[turn % 3]);
    Find(&batches_[(turn + 2) % 3]);
    Batch& last = batches_[(turn + 1) % 3];
    Copy(last);
    if (turn >= 2 && last.keys_count == 0) return;
  }
}

void EmbeddingReader::Fill(Batch* batch) {
  batch->keys_count = 0;
  batch->segments_count = 0;
  while (batch->keys_count < kBatchRows && next_ < wanted_.size()) {
    const Wanted& wanted = wanted_[next_];
    if (taken_ == 0) keys_ = wanted.keys;
    const size_t begin = batch->keys_count;
    const size_t count = std::min(kBatchRows - begin, wanted.count - taken_);
    keys_.Take(count * sizeof(Key)).CopyTo(&batch->keys[begin]);
    const RowIndex& index = wanted.table->rows_.index();
    for (size_t i = begin; i < begin + count; ++i) batch->homes[i] = index.Prepare(batch->keys[i]);
    batch->keys_count += count;
    batch->segments[batch->segments_count++] = {wanted.table, batch->keys_count,
                                                wanted.dst + taken_ * wanted.table->table_->dim()};
    taken_ += count;
    if (taken_ < wanted.count) return;
    ++next_;
    taken_ = 0;
    while (next_ < wanted_.size() && wanted_[next_].count == 0) ++next_;
  }
}

void EmbeddingReader::Find(Batch* batch) {
  size_t i = 0;
  for (size_t s = 0; s < batch->segments_count; ++s) {
    const Segment& segment = batch->segments[s];
    const EmbeddingTable& table = *segment.table;
    const RowIndex& index = table.rows_.index();
    const PageLayout layout = table.rows_.layout();
    const RowStore::Page* const pages = table.rows_.pages().data();
    const size_t bytes = table.table_->dim() * sizeof(float);
    const auto take = [&](RowId row) {
      batch->rows[i] = row;
      if (row == kNoRow) return;
      batch->values[i] = layout.Row(pages[row >> layout.rows_log2].buffer, row & (layout.rows() - 1));
      PrefetchRow(batch->values[i], bytes);
    };
    const size_t begin = i;
    for (; i < segment.end; ++i) take(index.FindMoved(batch->keys[i], batch->homes[i]));
    if (!index.grows()) continue;
    for (i = begin; i < segment.end; ++i) {
      if (batch->rows[i] == kNoRow) take(index.FindUnmoved(batch->keys[i]));
    }
  }
}

void EmbeddingReader::Copy(const Batch& batch) const {
  size_t i = 0;
  for (size_t s = 0; s < batch.segments_count; ++s) {
    const Segment& segment = batch.segments[s];
    EmbeddingTable& table = *segment.table;
    const size_t dim = table.table_->dim();
    for (float* out = segment.dst; i < segment.end; ++i, out += dim) {
      if (batch.rows[i] == kNoRow) {
        table.table_->InitializeRow(batch.keys[i], out);
        continue;
      }
      CopyRow(batch.values[i], dim, out);
      if (table.policy_.tracks_usage()) table.policy_.Use(batch.rows[i], now_ms_);
    }
  }
}

}  // namespace lodestone::server
