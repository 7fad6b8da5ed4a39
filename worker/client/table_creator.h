// Creates tables on the servers.
//
// Thread-safe. What `servers` points to must outlive it.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/wire/shard_map.h"
#include "proto/parameter_server.pb.h"
#include "proto/table.pb.h"
#include "worker/client/pusher.h"
#include "worker/client/table_handle.h"

namespace lodestone::worker {

// Whether there is nothing to be had from `server`, which does not answer either.
inline bool IsOut(const ShardMap& map, uint32_t server) { return map.Away(server) && map.ShardsOf(server).empty(); }

class TableMaker {
 public:
  explicit TableMaker(Servers servers) : servers_(std::move(servers)) {}

  // Client::EnsureTables, which blocks. The sessions hear of the tables.
  absl::StatusOr<std::vector<TableHandle>> EnsureTables(const std::vector<v1::TableSpec>& specs) const;

 private:
  absl::StatusOr<v1::EnsureTablesResponse> EnsureTablesOn(uint32_t server,
                                                          const v1::EnsureTablesRequest& request) const;
  // Takes what `server` says of the tables into `tables`, which has what those before it said, or nothing.
  absl::Status AddHandles(uint32_t server, const std::vector<v1::TableSpec>& specs,
                          const v1::EnsureTablesResponse& response, std::vector<TableHandle>* tables) const;

  const Servers servers_;
};

}  // namespace lodestone::worker
