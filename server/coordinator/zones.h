// The zones of servers (server.zone): servers of one zone may fail together, as those of a rack or a data centre do.
// The copies of a shard belong into different ones.
//
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "server/coordinator/cluster_options.h"
#include "server/coordinator/member_place.h"
#include "server/coordinator/member_table.h"
#include "server/coordinator/shard_assignment.h"

namespace lodestone::server {

// Whether two servers are of one zone. One that names none shares it with nobody.
bool ShareZone(const MemberPlace& a, const MemberPlace& b);

// A line for each zone that has all copies of shards, two at least: of how many, and what keeps one from another zone.
std::vector<std::string> OneZoneLines(const ClusterOptions& options, const MemberTable& members,
                                      const ShardAssignment& shards);

}  // namespace lodestone::server
