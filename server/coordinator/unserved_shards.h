// The shards of a cluster that nobody serves until an operator does something, in words.
#pragma once

#include <string>
#include <vector>

#include "server/coordinator/cluster_options.h"
#include "server/coordinator/member_table.h"
#include "server/coordinator/shard_assignment.h"

namespace lodestone::server {

// A line for each ps that has lost shards, or is away and whose shards another ps holds copies of: what is not served,
// why, and what to do.
std::vector<std::string> UnservedLines(const ClusterOptions& options, const MemberTable& members,
                                       const ShardAssignment& shards);

}  // namespace lodestone::server
