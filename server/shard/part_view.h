// One part of a push or pull: the piece of one table on one shard, checked against the table, and pointing into the
// request's payload.
//
// Thread safety: a value. Ownership: borrows the message, the payload and the table that it was made from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/base/byte_view.h"
#include "common/base/types.h"

namespace lodestone::server {

class DenseTable;
class NormGuard;
class Table;

struct PartView {
  Table* table = nullptr;
  const DenseTable* dense = nullptr;  // The shard's blocks; null for an embedding table.
  NormGuard* guard = nullptr;         // Null: the table has none.
  ShardId shard = 0;
  int index = 0;                       // Of the part in its message.
  std::span<const BlockIndex> blocks;  // Dense.
  ByteView keys;                       // Embedding: row_count unaligned keys.
  size_t row_count = 0;
  ByteView gradients;   // Push: unaligned floats.
  uint64_t values = 0;  // Floats that are pushed or requested.
  // Push (Part.more): whether no later message of it has more of the table for this ps, and for this shard.
  bool last_for_ps = true;
  bool last_for_shard = true;
  // Push: the version at which the shard's values were read that the gradients were computed from; 0: not known.
  Version read_version = 0;
  // Push of rows: whether new keys may get one. Not where there is no room for them, and the table turns them away.
  bool takes_new = true;
  // Push of rows: bytes that are reserved for its new rows.
  uint64_t room_bytes = 0;
};

}  // namespace lodestone::server
