// The identifiers that every part of Lodestone uses.
#pragma once

#include <cstdint>

namespace lodestone {

using TableId = uint32_t;      // The same on every server: a stable hash of the table's name.
using ShardId = uint32_t;      // 0 … cluster.shards - 1.
using BlockIndex = uint32_t;   // Index of a block within its dense table.
using Key = uint64_t;          // Names an embedding row.
using Version = uint64_t;      // A shard's position in its own order of updates; 0 before the first.
using Incarnation = uint64_t;  // One life of one process; 0: none.
using Sequence = uint64_t;     // Numbers a worker's pushes from 1.
using Clock = uint64_t;        // A worker's step count.

}  // namespace lodestone
