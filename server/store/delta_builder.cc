#include "server/store/delta_builder.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "server/store/buffer_slice.h"

namespace lodestone::server {
namespace {

using Piece = ShardChange::Piece;

// Appends a piece of `change`, with an empty part of `table`.
v1::Part* AddPiece(const Table& table, ShardChange* change) {
  v1::Part* const part = change->pieces.emplace_back().delta.add_parts();
  part->set_shard(change->shard);
  part->set_table(table.id());
  return part;
}

void AddBlocks(const Shard::Snapshot::DensePart& dense, std::optional<Version> from, size_t bytes_target,
               ShardChange* change) {
  v1::Part* part = nullptr;
  for (const DenseTable::BlockState& block : dense.blocks) {
    if (from.has_value() && block.version <= *from) continue;
    const size_t bytes = block.values->size_bytes();
    if (part == nullptr || change->pieces.back().payload_bytes + bytes > bytes_target) {
      part = AddPiece(*dense.table, change);
    }
    part->add_blocks(block.block);
    part->add_block_versions(block.version);
    Piece& piece = change->pieces.back();
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

// Appends one piece with `evicted` keys and `rows`.
void AddRowsPiece(const Table& table, std::span<const Key> evicted, std::span<const RowRef> rows, ShardChange* change) {
  v1::Part* const part = AddPiece(table, change);
  part->set_evicted_count(static_cast<uint32_t>(evicted.size()));
  part->set_row_count(static_cast<uint32_t>(rows.size()));
  Piece& piece = change->pieces.back();
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
}

void AddRows(const Shard::Snapshot::RowsPart& part, std::optional<Version> from, size_t bytes_target,
             ShardChange* change) {
  const std::vector<RowRef> rows = ChangedRows(part, from);
  const size_t row_bytes = sizeof(Key) + part.table->dim() * sizeof(float);
  const size_t rows_per_piece = std::max<size_t>(1, bytes_target / row_bytes);
  std::span<const Key> evicted = part.content.evicted;
  if (from.has_value() && !evicted.empty()) {
    AddRowsPiece(*part.table, evicted, {}, change);
  }
  for (size_t begin = 0; begin < rows.size(); begin += rows_per_piece) {
    const size_t n = std::min(rows_per_piece, rows.size() - begin);
    AddRowsPiece(*part.table, {}, std::span(rows).subspan(begin, n), change);
  }
}

}  // namespace

ShardChange AssembleChange(const Shard::Snapshot& snapshot, std::optional<Version> from, uint64_t term,
                           size_t bytes_target) {
  ShardChange change;
  change.shard = snapshot.shard;
  change.version = snapshot.version;
  change.term = term;
  for (const auto& dense : snapshot.dense) AddBlocks(dense, from, bytes_target, &change);
  for (const auto& rows : snapshot.rows) AddRows(rows, from, bytes_target, &change);
  if (change.pieces.empty()) change.pieces.emplace_back();  // It says the version.
  for (Piece& piece : change.pieces) {
    piece.delta.set_shard(snapshot.shard);
    piece.delta.set_from_version(from.value_or(0));
    piece.delta.set_version(snapshot.version);
    piece.delta.set_term(term);
  }
  change.pieces.front().delta.set_anchor(!from.has_value());
  change.pieces.back().delta.set_complete(true);
  return change;
}

}  // namespace lodestone::server
