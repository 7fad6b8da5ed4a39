// The store's view of replication: a sink for the updates of owned shards, so that their followers apply them too.
//
// Thread-safe. Ownership: must live until the store's executors have run what they have and no call comes any more
// (ServerProcess::Shutdown sees to both before it ends replication).
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "server/wal/shard_log.h"

namespace lodestone::server {

class ReplicaSink {
 public:
  virtual ~ReplicaSink() = default;

  // Takes updates of owned shards that were applied just now, or (version 0) records of the ps as a whole. Called on
  // the shards' executor, in the order of their versions. Must be quick. `keep` owns the payloads; null: they are valid
  // during the call only.
  virtual void Append(std::span<const ShardLog::Record> records, const std::shared_ptr<const void>& keep) = 0;

  // A shard at a version.
  struct Position {
    ShardId shard = 0;
    Version version = 0;
  };
  // Calls `done`, perhaps within this call, with OK when all followers in sync hold the updates of these shards up to
  // these versions; with ABORTED if a shard has another owner now; with UNAVAILABLE if that cannot be known in time, or
  // if fewer copies than are wanted hold them.
  using Done = std::function<void(const absl::Status&)>;
  virtual void Await(std::span<const Position> positions, Done done) = 0;

  // Whether any shard of this ps has, or has had, a follower, or another owner: otherwise neither of the above need be
  // called. Once true it stays so.
  virtual bool engaged() const { return true; }
  // Whether that is so from the beginning (cluster.replicas).
  virtual bool always_engaged() const { return true; }

  // Why no push to this shard, which is owned, should be applied now: UNAVAILABLE if fewer copies of it are in sync
  // than are wanted (cluster.in_sync_min). Cheap where one is enough.
  virtual absl::Status CheckCopies(ShardId /*shard*/) { return absl::OkStatus(); }

  // Why no update should come now: RESOURCE_EXHAUSTED if too many wait for followers. Cheap.
  virtual absl::Status health() const = 0;
};

}  // namespace lodestone::server
