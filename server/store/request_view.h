// Validation of a push or pull: its parts as PartViews, checked against the tables of this ps.
//
// Thread safety: pure functions over immutable data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_view.h"
#include "common/base/types.h"
#include "proto/parameter_server.pb.h"
#include "server/shard/part_view.h"
#include "server/shard/shard_role.h"
#include "server/store/table_map.h"

namespace lodestone::server {

// Whether gradients or only keys lie in the payload.
enum class PartKind { kPush, kPull };

using Parts = google::protobuf::RepeatedPtrField<v1::Part>;

// Bytes of `parts` in a push's payload, `keys` of them the keys of rows (may be null). NOT_FOUND for an unknown table,
// INVALID_ARGUMENT for parts that contradict it.
absl::StatusOr<size_t> PushPayloadBytes(const Parts& parts, const TableMap& tables, size_t* keys = nullptr);

// Views of `parts` in `payload`, and in `keys` if the keys of all parts are not in the payload but there, in order. The
// parts must cover all bytes of both. Their shards must have the role `least` here, or a greater one. Errors as
// ParameterServer documents them, naming part, table, block or key.
absl::StatusOr<std::vector<PartView>> ViewParts(PartKind kind, const Parts& parts, ByteView payload,
                                                std::optional<ByteView> keys, const TableMap& tables,
                                                const ShardRoles& roles, ShardRole least = ShardRole::kOwns);

// ABORTED: this ps does not own the shard.
absl::Status NotOwned(ShardId shard);

// INVALID_ARGUMENT, naming table and block or key, if a gradient is NaN or infinite.
absl::Status CheckFinite(std::span<const PartView> views);

// INVALID_ARGUMENT, naming the table, if parts of tables with steps (Consistency.Sync, Consistency.Tokens) come without
// a contribution, or with one that makes no sense for a table, or not all that it has for a shard in one message.
// Whether its step is one that a shard can take is for the shard to say.
absl::Status CheckContribution(std::span<const PartView> views, const v1::PushRequest& header);

// What the guard of a table is to learn from a push, once that has been applied.
struct GuardedNorm {
  NormGuard* guard = nullptr;
  double mean_square = 0;
};
// OUT_OF_RANGE, naming the table, if the guard of one refuses its gradients. `norms`: one for each guard.
absl::Status JudgeGuards(std::span<const PartView> views, std::vector<GuardedNorm>* norms);

}  // namespace lodestone::server
