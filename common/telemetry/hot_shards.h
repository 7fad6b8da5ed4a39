// Shards to which much more comes than to others, and those that take longer for it, by what their owners report.
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

// The shards that take a tenth or more of the time for which executors of the cluster apply pushes, at least twice the
// median of that, and for each byte at least eight times the median of the shards to which any are pushed; the slowest
// first, at most limits::kHotShardsMax. None while pushes take less than a tenth of a core's time.
std::vector<v1::SlowShard> SlowShardsOf(const v1::ClusterStatus& cluster);

// Fills in ClusterStatus.hot_shards and slow_shards, where `status` has the cluster.
void FindHotAndSlowShards(v1::StatusResponse* status);

}  // namespace lodestone
