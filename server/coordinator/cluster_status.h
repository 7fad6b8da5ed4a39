// What the coordinator reports about its cluster: the status of each process, and how training goes.
//
// Thread safety: the functions only read what they are given.
#pragma once

#include "proto/admin.pb.h"
#include "server/coordinator/cluster_options.h"
#include "server/coordinator/history.h"
#include "server/coordinator/member_table.h"
#include "server/coordinator/shard_assignment.h"

namespace lodestone::server {

v1::ClusterStatus ClusterStatusOf(const ClusterOptions& options, const MemberTable& members,
                                  const ShardAssignment& shards);

// Whether some worker lives and has not finished. A worker that was restored counts once it has been heard of.
bool AnyWorkerWorks(const MemberTable& members);

// How training goes on now.
Moment MomentOf(const MemberTable& members);

}  // namespace lodestone::server
