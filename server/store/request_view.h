// The parts of a push or pull, checked against the tables and pointing into the payload.
//
// Thread safety: pure functions over immutable data.
// Ownership: a PartView borrows the message, the payload and the table it was made from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_view.h"
#include "common/base/types.h"
#include "proto/parameter_server.pb.h"
#include "server/shard/shard_role.h"
#include "server/table/dense_table.h"
#include "server/table/norm_guard.h"
#include "server/table/table.h"

namespace lodestone::server {

// A table with its parts on this ps.
struct TableEntry {
  std::unique_ptr<Table> table;
  std::vector<const DenseTable*> dense;  // By shard; null where the shard is not owned. Empty for embedding tables.
  std::unique_ptr<NormGuard> guard;      // Null: the table has none.
};

// The tables of a ps at one time.
using TableMap = absl::flat_hash_map<TableId, std::shared_ptr<TableEntry>>;

// Whether gradients or only keys lie in the payload.
enum class PartKind { kPush, kPull };

struct PartView {
  const TableEntry* entry = nullptr;
  ShardId shard = 0;
  std::span<const BlockIndex> blocks;  // Dense.
  ByteView keys;                       // Embedding: row_count unaligned keys.
  size_t row_count = 0;
  ByteView gradients;   // Push: unaligned floats.
  uint64_t values = 0;  // Floats that are pushed or asked for.
};

using Parts = google::protobuf::RepeatedPtrField<v1::Part>;

// Bytes of `parts` in a push's payload, `keys` of them the keys of rows (may be null). NOT_FOUND for an unknown table,
// INVALID_ARGUMENT for parts that contradict it.
absl::StatusOr<size_t> PushPayloadBytes(const Parts& parts, const TableMap& tables, size_t* keys = nullptr);

// Where the numbers of parts lie.
struct PartBytes {
  PartBytes(ByteView payload, std::optional<ByteView> keys = std::nullopt)  // NOLINT: as a rule a payload is all.
      : payload(payload), keys(keys) {}

  ByteView payload;
  std::optional<ByteView> keys;  // The keys of all parts, in order, if they are not in the payload.
};

// Views of `parts` in `bytes`, all of which the parts must cover. Their shards must have the role `least` here, or a
// greater one. Errors as ParameterServer documents them, naming part, table, block or key.
absl::StatusOr<std::vector<PartView>> ViewParts(PartKind kind, const Parts& parts, PartBytes bytes,
                                                const TableMap& tables, const ShardRoles& roles,
                                                ShardRole least = ShardRole::kOwns);

// ABORTED: the shard is not this ps's.
absl::Status NotOwned(ShardId shard);

// INVALID_ARGUMENT, naming table and block or key, if a gradient is NaN or infinite.
absl::Status CheckFinite(std::span<const PartView> views);

// OUT_OF_RANGE, naming the table, if the guard of one refuses its gradients. Otherwise the guards have taken the push.
absl::Status CheckGuards(std::span<const PartView> views);

}  // namespace lodestone::server
