// The shard map as processes receive it, made of an assignment.
//
// Thread safety: the function only reads.
#pragma once

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/member_table.h"
#include "server/coordinator/shard_assignment.h"

namespace lodestone::server {

// As ShardAssignment::Route.
absl::StatusOr<v1::RouteResponse> RouteOf(const ClusterOptions& options, const MemberTable& members,
                                          const ShardAssignment& shards);

}  // namespace lodestone::server
