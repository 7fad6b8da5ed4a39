// Shards to which much more comes than to others, by what their owners report.
//
// Thread safety: pure functions.
#pragma once

#include <vector>

#include "proto/admin.pb.h"

namespace lodestone {

// The shards that take a tenth or more of the bytes that are pushed to the cluster, or pulled from it, and at least
// eight times the median of the shards that take any; the hottest first, at most limits::kHotShardsMax. None while the
// cluster is as good as idle.
std::vector<v1::HotShard> HotShardsOf(const v1::ClusterStatus& cluster);

// Fills in ClusterStatus.hot_shards, where `status` has the cluster.
void FindHotShards(v1::StatusResponse* status);

}  // namespace lodestone
