// The creation of tables on the servers.
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
#include "worker/client/server_set.h"
#include "worker/client/table_handle.h"
#include "worker/rpc/connection.h"

namespace lodestone::worker {

// Whether `server` is away and owns nothing: it need not be called.
inline bool IsOut(const ShardMap& map, uint32_t server) { return map.Away(server) && map.ShardsOf(server).empty(); }

// The handle of the table that all servers have with this specification; INVALID_ARGUMENT if its shape has no valid
// size.
absl::StatusOr<TableHandle> HandleOf(const v1::TableSpec& spec, uint32_t shards);

class TableCreator {
 public:
  explicit TableCreator(ServerSet servers) : servers_(std::move(servers)) {}

  // As Client::EnsureTables, of all servers at once. Blocks. Adds the tables to the sessions.
  absl::StatusOr<std::vector<TableHandle>> EnsureTables(const std::vector<v1::TableSpec>& specs) const;
  // As Client::DescribeTables: of all servers, the specification that has changed most often.
  absl::StatusOr<std::vector<v1::TableSpec>> DescribeTables(const std::vector<std::string>& names) const;
  // As Client::DescribeByServer.
  absl::StatusOr<std::vector<std::vector<v1::TableSpec>>> DescribeByServer(const std::vector<std::string>& names) const;
  // As Client::FollowOrders.
  absl::Status FollowOrders(uint64_t orders) const;

 private:
  class Answers;
  using Answer = absl::StatusOr<Connection::Answer>;

  // The servers that are not out.
  std::vector<uint32_t> Reachable() const;
  // What each of `asked` answers to `request`.
  std::vector<Answer> Ask(const std::vector<uint32_t>& asked, const v1::EnsureTablesRequest& request,
                          const char* what) const;

  // What `server` said of `tables` tables.
  absl::StatusOr<v1::EnsureTablesResponse> ResponseOf(uint32_t server, size_t tables,
                                                      absl::StatusOr<Connection::Answer> answer) const;
  // Merges the answer of `server` into `tables`, which has those of the servers before it, or nothing.
  absl::Status AddHandles(uint32_t server, const std::vector<v1::TableSpec>& specs,
                          const v1::EnsureTablesResponse& response, std::vector<TableHandle>* tables) const;

  const ServerSet servers_;
};

}  // namespace lodestone::worker
