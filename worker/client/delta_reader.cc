#include "worker/client/delta_reader.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/shard_map.h"
#include "worker/client/payload_metrics.h"

namespace lodestone::worker {
namespace {

// Takes `bytes` bytes from the front of `payload`.
absl::StatusOr<ByteView> Take(ByteView* payload, uint64_t bytes) {
  if (bytes <= payload->size()) return payload->Take(bytes);
  return absl::InternalError(
      absl::StrCat("the delta's payload has ", payload->size(), " bytes left, needed are ", bytes));
}

}  // namespace

absl::Status DeltaReader::Read(const v1::Delta& header, const Payload& payload) {
  broadcast_bytes_metric.Add(payload.size());
  ByteView rest = payload.bytes();
  for (const auto& delta : header.shards()) {
    LODESTONE_RETURN_IF_ERROR(Annotate(ReadShard(delta, &rest), absl::StrCat("shard ", delta.shard())));
  }
  if (rest.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the delta's payload has ", payload.size(), " bytes, its parts describe ",
                                          payload.size() - rest.size()));
}

absl::Status DeltaReader::ReadShard(const v1::Delta::ShardDelta& delta, ByteView* payload) {
  if (delta.shard() >= positions_->shards()) {
    return absl::InternalError(absl::StrCat("there are only ", positions_->shards(), " shards"));
  }
  ShardPosition& position = *positions_->Of(delta.shard());
  MutexLock lock(&position.mu);
  LODESTONE_ASSIGN_OR_RETURN(const ShardPosition::Piece piece, position.Admit(name_, delta));
  const bool admitted = piece != ShardPosition::Piece::kOutdated;
  if (piece == ShardPosition::Piece::kFirst && delta.anchor() && listener_->on_anchor) {
    listener_->on_anchor(delta.shard());
  }
  if (absl::Status status = ReadParts(delta, admitted, payload); !status.ok()) {
    if (admitted) position.Forget();
    return status;
  }
  if (!admitted) return absl::OkStatus();
  position.Apply(delta);
  if (delta.complete() && listener_->on_shard) listener_->on_shard(delta.shard(), delta.version());
  return absl::OkStatus();
}

absl::Status DeltaReader::ReadParts(const v1::Delta::ShardDelta& delta, bool admitted, ByteView* payload) {
  for (const v1::Part& part : delta.parts()) {
    if (part.shard() != delta.shard()) return absl::InternalError(absl::StrCat("a part of shard ", part.shard()));
    const auto table = tables_->find(part.table());
    if (table == tables_->end())
      return absl::InternalError(absl::StrCat("table id ", part.table(), " was not asked for"));
    const TableHandle& handle = *table->second;
    LODESTONE_RETURN_IF_ERROR(Annotate(handle.spec.has_dense() ? ReadBlocks(part, handle, admitted, payload)
                                                               : ReadRows(part, handle, admitted, payload),
                                       handle.spec.name()));
  }
  return absl::OkStatus();
}

absl::Status DeltaReader::ReadRows(const v1::Part& part, const TableHandle& table, bool admitted, ByteView* payload) {
  if (part.blocks_size() != 0) return absl::InternalError("blocks of an embedding table");
  RowsOfShard update{
      .table = table.id, .shard = part.shard(), .evicted_count = part.evicted_count(), .count = part.row_count()};
  LODESTONE_ASSIGN_OR_RETURN(update.evicted, Take(payload, update.evicted_count * sizeof(Key)));
  LODESTONE_ASSIGN_OR_RETURN(update.keys, Take(payload, update.count * sizeof(Key)));
  LODESTONE_ASSIGN_OR_RETURN(update.values, Take(payload, update.count * sizeof(float) * table.dim));
  if (admitted && listener_->on_rows) listener_->on_rows(update);
  return absl::OkStatus();
}

absl::Status DeltaReader::ReadBlocks(const v1::Part& part, const TableHandle& table, bool admitted, ByteView* payload) {
  if (part.row_count() != 0 || part.evicted_count() != 0) return absl::InternalError("rows of a dense table");
  if (part.block_versions_size() != part.blocks_size()) {
    return absl::InternalError(
        absl::StrCat(part.blocks_size(), " blocks with ", part.block_versions_size(), " versions"));
  }
  for (int i = 0; i < part.blocks_size(); ++i) {
    const BlockIndex block = part.blocks(i);
    if (block >= table.layout.block_count() || ShardOfBlock(table.id, block, positions_->shards()) != part.shard()) {
      return absl::InternalError(absl::StrCat("block ", block, " is not of this table and shard"));
    }
    const size_t count = table.layout.ElementsOf(block);
    LODESTONE_ASSIGN_OR_RETURN(const ByteView values, Take(payload, count * sizeof(float)));
    if (!admitted || !listener_->on_block) continue;
    listener_->on_block(BlockUpdate{table.id, block, part.shard(), part.block_versions(i), values, count});
  }
  return absl::OkStatus();
}

}  // namespace lodestone::worker
