// What can be read of a cluster: the shard map, tables, values by pull and by broadcast.
//
// A worker's Client is one. So is an observer, which only reads: it takes no worker's place, has no lease, and the
// coordinator does not know it. It looks for another shard map each second, and at once when a call fails.
//
// Thread-safe. Callbacks are called as Client's are. The destructor cancels what is in flight and waits for the
// callbacks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "common/wire/shard_map.h"
#include "proto/config.pb.h"
#include "proto/table.pb.h"
#include "worker/client/types.h"

namespace lodestone::worker {

class ClusterReader {
 public:
  // An observer of the cluster of the coordinator at config.coordinator. Waits for the servers that own shards until
  // coordinator.join_timeout_ms has passed. cluster.shards is ignored; cluster.name must be right.
  static absl::StatusOr<std::unique_ptr<ClusterReader>> Observe(const v1::Config& config);
  virtual ~ClusterReader() = default;

  // The newest: addresses and owners may change; how many shards and servers there are does not.
  virtual std::shared_ptr<const ShardMap> shard_map() const = 0;

  // Creates the tables on every server, or finds them there. A server that is away and owns nothing gets them once it
  // owns something. For an observer tables that exist keep all of their settings. The handles have the settings that
  // the tables have then: what an operator holds is not what was asked for.
  virtual absl::StatusOr<std::vector<TableHandle>> EnsureTables(const std::vector<v1::TableSpec>& specs) = 0;

  // Those of the tables that exist, as they are now. Makes nothing.
  virtual absl::StatusOr<std::vector<v1::TableSpec>> DescribeTables(const std::vector<std::string>& names) = 0;
  // The same as each server has them that can be asked: while settings change they may differ.
  virtual absl::StatusOr<std::vector<std::vector<v1::TableSpec>>> DescribeByServer(
      const std::vector<std::string>& names) = 0;

  // Reads values; `done` runs once all dst are filled or it failed. Tables, keys and dst must stay until then.
  virtual void Pull(std::vector<DensePull> dense, std::vector<RowPull> rows,
                    std::function<void(absl::Status, ShardVersions)> done) = 0;
  // The same of tables whose consistency is sync or tokens, which have steps: waits, at the ps, for those that `read`
  // wants, and `done` also gets the lowest steps of what was read. UNAVAILABLE, saying which batches are missing, if
  // they do not come.
  virtual void PullSteps(const StepRead& read, std::vector<DensePull> dense, std::vector<RowPull> rows,
                         std::function<void(absl::Status, ShardVersions, uint64_t steps)> done) = 0;
  // Pull, waiting.
  virtual absl::StatusOr<ShardVersions> PullNow(std::vector<DensePull> dense, std::vector<RowPull> rows) = 0;

  // Subscribes to tables on all servers, of embedding tables to all rows, with renewal after a lost connection, from
  // what is held where the ps can go on from that. The tables must stay where they are, and the callbacks be callable,
  // until it ends.
  virtual absl::StatusOr<SubscriptionId> Subscribe(std::vector<const TableHandle*> tables,
                                                   SubscriptionListener listener) = 0;
  // Ends it, or all subscriptions. Returns when no callback of theirs runs. REQUIRES: not called from a callback.
  virtual void Unsubscribe(SubscriptionId subscription) = 0;
  virtual void UnsubscribeAll() = 0;

  // Not OK once a worker's lease is lost or a server has refused this for ever: the process should exit with this
  // error.
  virtual absl::Status Health() const = 0;
};

}  // namespace lodestone::worker
