#include "server/store/delta_builder.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace lodestone::server {
namespace {

using Piece = Store::ShardChange::Piece;

void AddBlocks(const Shard::Snapshot::DensePart& dense, ShardId shard, size_t bytes_target,
               std::vector<Piece>* pieces) {
  bool open = false;
  for (const DenseTable::BlockState& block : dense.blocks) {
    const size_t bytes = block.values->size_bytes();
    if (!open || pieces->back().payload_bytes + bytes > bytes_target) {
      pieces->emplace_back();
      pieces->back().part.set_shard(shard);
      pieces->back().part.set_table(dense.table->id());
      open = true;
    }
    Piece& piece = pieces->back();
    piece.part.add_blocks(block.block);
    piece.part.add_block_versions(block.version);
    piece.payload.push_back(SliceOf(block.values, bytes));
    piece.payload_bytes += bytes;
  }
}

// A row of a page.
struct RowRef {
  Key key;
  const float* values;
};

std::vector<RowRef> ChangedRows(const Shard::Snapshot::RowsPart& part, std::optional<Version> from) {
  std::vector<RowRef> rows;
  const PageLayout& layout = part.layout;
  for (const EmbeddingTable::Snapshot::Page& page : part.content.pages) {
    const Key* const keys = layout.Keys(page.page);
    const uint32_t* const changed = layout.Changed(page.page);
    for (uint32_t i = 0; i < layout.rows(); ++i) {
      if (changed[i] == 0) continue;
      // Half the circle of 32-bit stamps is newer than `from`; the store asks for no change that spans more.
      if (from.has_value() && static_cast<int32_t>(changed[i] - static_cast<uint32_t>(*from)) <= 0) continue;
      rows.push_back({keys[i], layout.Row(page.page, i)});
    }
  }
  return rows;
}

// One piece with `evicted` keys and `rows`.
Piece RowsPiece(const Table& table, ShardId shard, std::span<const Key> evicted, std::span<const RowRef> rows) {
  Piece piece;
  piece.part.set_shard(shard);
  piece.part.set_table(table.id());
  piece.part.set_evicted_count(static_cast<uint32_t>(evicted.size()));
  piece.part.set_row_count(static_cast<uint32_t>(rows.size()));
  const size_t row_bytes = table.dim() * sizeof(float);
  piece.payload_bytes = evicted.size_bytes() + rows.size() * (sizeof(Key) + row_bytes);
  BufferRef buffer = BufferRef::New(piece.payload_bytes);
  uint8_t* out = buffer->bytes();
  if (!evicted.empty()) std::memcpy(out, evicted.data(), evicted.size_bytes());
  out += evicted.size_bytes();
  for (const RowRef& row : rows) {
    std::memcpy(out, &row.key, sizeof(Key));
    out += sizeof(Key);
  }
  for (const RowRef& row : rows) {
    std::memcpy(out, row.values, row_bytes);
    out += row_bytes;
  }
  piece.payload.push_back(SliceOf(std::move(buffer), piece.payload_bytes));
  return piece;
}

void AddRows(const Shard::Snapshot::RowsPart& part, ShardId shard, std::optional<Version> from, size_t bytes_target,
             std::vector<Piece>* pieces) {
  const std::vector<RowRef> rows = ChangedRows(part, from);
  const size_t row_bytes = sizeof(Key) + part.table->dim() * sizeof(float);
  const size_t rows_per_piece = std::max<size_t>(1, bytes_target / row_bytes);
  std::span<const Key> evicted = part.content.evicted;
  if (from.has_value() && !evicted.empty()) {
    pieces->push_back(RowsPiece(*part.table, shard, evicted, {}));
  }
  for (size_t begin = 0; begin < rows.size(); begin += rows_per_piece) {
    const size_t n = std::min(rows_per_piece, rows.size() - begin);
    pieces->push_back(RowsPiece(*part.table, shard, {}, std::span(rows).subspan(begin, n)));
  }
}

}  // namespace

grpc::Slice SliceOf(BufferRef buffer, size_t size, size_t at) {
  void* const bytes = buffer->bytes() + at;
  return grpc::Slice(
      bytes, size, [](void* leaked) { BufferRef::Release(static_cast<Buffer*>(leaked)); }, buffer.Leak());
}

Store::ShardChange AssembleChange(const Shard::Snapshot& snapshot, std::optional<Version> from, size_t bytes_target) {
  Store::ShardChange change;
  change.shard = snapshot.shard;
  change.from_version = from.value_or(0);
  change.version = snapshot.version;
  change.anchor = !from.has_value();
  for (const auto& dense : snapshot.dense) AddBlocks(dense, snapshot.shard, bytes_target, &change.pieces);
  for (const auto& rows : snapshot.rows) AddRows(rows, snapshot.shard, from, bytes_target, &change.pieces);
  return change;
}

}  // namespace lodestone::server
