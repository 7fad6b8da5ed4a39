// Where a store hands what it applies to the shards that it owns, so that their followers apply it too. The store knows
// no more of replication than this.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "server/wal/wal_writer.h"

namespace lodestone::server {

class ReplicaSink {
 public:
  virtual ~ReplicaSink() = default;

  // Updates of owned shards that were applied just now, or (version 0) news about the ps as a whole. Called on the
  // shards' executor, in the order of their versions. Must be quick. `keep` is what the payloads lie in; null: they are
  // gone after the call.
  virtual void Append(std::span<const ShardLog::Record> records, const std::shared_ptr<const void>& keep) = 0;

  // A shard at a version.
  struct Position {
    ShardId shard = 0;
    Version version = 0;
  };
  // Calls `done`, perhaps within this call, when the followers that count hold all updates of these shards up to these
  // versions: OK. ABORTED if a shard has another owner now; UNAVAILABLE if that cannot be known in time.
  using Done = std::function<void(const absl::Status&)>;
  virtual void Await(std::span<const Position> positions, Done done) = 0;

  // Why no update should come now: RESOURCE_EXHAUSTED if too many wait for followers. Cheap.
  virtual absl::Status health() const = 0;
};

}  // namespace lodestone::server
