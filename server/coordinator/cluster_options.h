// The size and the timing of a cluster, as its coordinator is configured.
//
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/time_source.h"
#include "common/base/types.h"
#include "server/coordinator/rebalance_options.h"

namespace lodestone::server {

struct ClusterOptions {
  std::string cluster;            // cluster.name.
  uint32_t servers = 1;           // Places for servers.
  uint32_t servers_at_start = 0;  // Of these, that shards are dealt to when the cluster begins; 0: all.
  uint32_t workers = 1;           // Places for workers.
  uint32_t shards = 1;
  uint32_t replicas = 1;  // Servers that hold each shard: 2 are an owner and a follower, 3 an owner and two.
  uint32_t lease_ms = 10'000;
  uint32_t worker_lease_ms = 10'000;  // Of workers that lease ranges; lease_ms if that is less.
  bool ends_with_server_0 = true;     // The ps with index 0 serves the coordinator: their lives end together.
  Incarnation first_incarnation = 1;  // FirstIncarnation of the start.
  RebalanceOptions rebalance;
  bool watches_processes = false;  // A process that its machine says is dead loses its lease at once.
  // By which a coordinator that stands still notices it; null: a SteadyTime. Must outlive it.
  const TimeSource* stall_time = nullptr;
  const TimeSource* time = nullptr;  // Must outlive what is made with it. Events count by it: milliseconds since 1970.

  uint32_t first_servers() const { return servers_at_start > 0 ? servers_at_start : servers; }
  // Whether all shards are to have followers. Otherwise one has a follower while it moves.
  bool replicated() const { return followers() > 0; }
  // That each shard is to have.
  uint32_t followers() const { return (replicas < servers ? replicas : servers) - 1; }
};

}  // namespace lodestone::server
