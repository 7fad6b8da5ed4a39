// A worker's side of the wire: joins the cluster, finds each shard's server, pushes and pulls, subscribes.
//
// Push and Pull are asynchronous: they return when the request is on its way and call back from a thread of the
// client's own, of which there are few: callbacks must be quick and must not wait for other calls (as Push does while
// its window is full, in which a push counts until its callback has returned). They may make calls: those that follow
// from the answers of one message go out together, which is the cheapest way to keep several under way.
//
// A call that fails for a passing reason (unreachable, overloaded, deadline) is tried again with the same sequence
// until `worker.retry_timeout_ms` has passed. A ps that comes back elsewhere is followed: what is unanswered is sent to
// its new address, and subscriptions are renewed there. A shard that gets another owner as well: what is unanswered,
// and what the former owner turns back, goes to the new one. Thread-safe unless a method says otherwise.
//
// The client owns its channels and threads. Its destructor cancels what is under way, waits for the callbacks, and
// leaves the cluster.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_view.h"
#include "common/base/types.h"
#include "common/wire/shard_map.h"
#include "proto/config.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/table.pb.h"
#include "worker/client/table_handle.h"

namespace lodestone::worker {

// Gradients of a whole dense table: layout.elements floats.
struct DenseGradient {
  const TableHandle* table = nullptr;
  const float* values = nullptr;
  // The values are sent from where they lie: they must stay, unchanged, until the push's `done` runs. Otherwise they
  // are copied.
  bool borrowed = false;
};

// Gradients of some rows: keys are distinct; values is [keys.size(), dim].
struct RowGradients {
  const TableHandle* table = nullptr;
  std::span<const Key> keys;
  const float* values = nullptr;
};

// A dense table's values wanted in dst (layout.elements floats).
struct DensePull {
  const TableHandle* table = nullptr;
  float* dst = nullptr;
};

// Some rows wanted in dst ([keys.size(), dim]), in the order of the keys.
struct RowPull {
  const TableHandle* table = nullptr;
  std::span<const Key> keys;
  float* dst = nullptr;
};

// The versions of the shards when values were read: index by shard, 0 where nothing was read.
using ShardVersions = std::vector<Version>;

// A change that a subscription received: one dense block.
struct BlockUpdate {
  TableId table = 0;
  BlockIndex block = 0;
  ShardId shard = 0;
  Version version = 0;  // At which the block last changed.
  ByteView values;      // Unaligned little-endian floats, `count` of them, valid during the callback only.
  size_t count = 0;
};

class Client {
 public:
  // Joins the coordinator at config.coordinator.address, waits for all servers that own something, and starts the
  // heartbeat. Logs what it waits for. `on_progress` (may be empty) hears of what ReportProgress is given, in the call.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const v1::Config& config, std::function<void(const v1::WorkerProgress&)> on_progress = nullptr);
  virtual ~Client() = default;

  virtual uint32_t index() const = 0;
  virtual Incarnation incarnation() const = 0;
  // The newest: addresses and owners may change; how many shards and servers there are does not.
  virtual std::shared_ptr<const ShardMap> shard_map() const = 0;

  // Creates the tables on every server, or finds them there. One that is away and owns nothing is told of them when it
  // owns something.
  virtual absl::StatusOr<std::vector<TableHandle>> EnsureTables(const std::vector<v1::TableSpec>& specs) = 0;

  // What became of a push, over all shards. OUT_OF_RANGE: the guard of a table refused it, or the part of it that one
  // server got.
  struct PushResult {
    absl::Status status;
    // Mean over the shards of how many pushes by others came between `read_versions` and this one.
    double staleness_pushes = 0;
  };
  // Sends gradients as the push of step `clock`. What is not borrowed is copied before Push returns. Blocks while
  // worker.pushes_in_flight_max pushes are unacknowledged. `read_versions` (may be empty) are those of the values that
  // the gradients were computed from. `done` runs once, when every server has acknowledged or failed for good; if Push
  // itself returns an error, nothing was sent and `done` does not run.
  virtual absl::Status Push(Clock clock, std::span<const DenseGradient> dense, std::span<const RowGradients> rows,
                            const ShardVersions& read_versions, std::function<void(PushResult)> done) = 0;

  // Reads values; `done` runs once all dst are filled or it failed. Tables, keys and dst must stay until then.
  virtual void Pull(std::vector<DensePull> dense, std::vector<RowPull> rows,
                    std::function<void(absl::Status, ShardVersions)> done) = 0;
  // The same, waiting.
  virtual absl::StatusOr<ShardVersions> PullNow(std::vector<DensePull> dense, std::vector<RowPull> rows) = 0;

  // Push, then Pull: what is read holds what was pushed. In one exchange with each server, as a rule; otherwise one
  // after the other. `done` runs once, when all dst are filled or either has failed; with the status of the push,
  // unless that is OK, then of the pull.
  virtual absl::Status PushPull(Clock clock, std::span<const DenseGradient> dense, std::span<const RowGradients> rows,
                                const ShardVersions& read_versions, std::vector<DensePull> dense_pulls,
                                std::vector<RowPull> row_pulls,
                                std::function<void(PushResult, ShardVersions)> done) = 0;

  // The tables must stay where they are, and the callbacks be callable, for as long as the client lives.
  // Subscribes to dense tables on all servers, with renewal after a lost connection, from what is held where the ps can
  // go on from that. `on_block` is called for each block and `on_shard` after each complete shard delta with the
  // version now held; calls for one shard are in order, those for several may be concurrent.
  virtual absl::Status Subscribe(std::vector<const TableHandle*> tables,
                                 std::function<void(const BlockUpdate&)> on_block,
                                 std::function<void(ShardId, Version)> on_shard) = 0;

  // Waits until no push is unacknowledged; the first error that a push ended with, if any. OUT_OF_RANGE, with which a
  // table's guard refuses a push, is none: the cluster is well.
  virtual absl::Status Flush() = 0;

  // What the next heartbeats report.
  virtual void ReportProgress(const v1::WorkerProgress& progress) = 0;
  // Waits until every other live worker's clock has reached `clock` (or it has finished); logs whom it waits for.
  virtual absl::Status AwaitClock(Clock clock) = 0;
  // Not OK once the lease is lost or a server has forgotten this worker: the process should end with it.
  virtual absl::Status Health() const = 0;
};

}  // namespace lodestone::worker
