// The way of a shard's change to a subscriber: a snapshot taken by the shard's executor, and the deltas built from it.
//
// Thread-safe. Callbacks run on the calling thread, an executor's, the background one or, where reads wait to be
// durable, a log's or a follower's stream's, and must be quick.
//
// Ownership: a change keeps what it refers to alive; all pointers must outlive the executors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/parameter_server.pb.h"
#include "server/store/broadcast_memory.h"
#include "server/store/shard_change.h"

namespace lodestone::server {

class Catalog;
class CommitLog;
class DenseSnapshot;
class ServingGate;
class Shard;
class ShardSet;
class Table;

class DeltaPath {
 public:
  // With `committed_only` a change is handed out once nothing of it could be taken back by a death.
  DeltaPath(const ServingGate* gate, ShardSet* shards, CommitLog* log, const Catalog* catalog, bool committed_only,
            std::shared_ptr<BroadcastMemory> memory)
      : gate_(gate),
        shards_(shards),
        log_(log),
        catalog_(catalog),
        committed_only_(committed_only),
        memory_(std::move(memory)) {}

  // What a subscriber wants of each shard.
  struct Subscription {
    struct Table {
      TableId id = 0;
      bool rows = false;
    };
    std::vector<Table> tables;
  };
  // Checks that all tables exist: NOT_FOUND, or UNAVAILABLE as Catalog::NameOf; INVALID_ARGUMENT for one that is there
  // twice.
  absl::StatusOr<Subscription> MakeSubscription(const v1::SubscribeRequest& request) const;
  // The owned shards that may hold something of it, ascending: all if it wants rows, else those with a block.
  std::vector<ShardId> ShardsOf(const Subscription& subscription) const;
  // Whether it wants no rows, so that Snapshot has all that it wants.
  bool IsDense(const Subscription& subscription) const;
  // How many bytes of values an anchor keeps in memory: those of the dense blocks on `shard`; and of the rows on one
  // shard, on average.
  uint64_t DenseBytesOf(const Subscription& subscription, ShardId shard) const;
  uint64_t RowBytesOf(const Subscription& subscription) const;

  // What a subscriber holds of a shard: a version, which is the same update only within one term.
  struct Held {
    uint64_t term = 0;
    Version version = 0;
  };
  // Calls `done` with the change of `shard` since `from` (nullopt: an anchor), taken at one version of the shard. If
  // the past is no longer known (evicted keys forgotten, or an update of another owner's that was lost with it), an
  // anchor is returned instead. ABORTED if the shard is lost to another owner meanwhile; with `committed_only`,
  // UNAVAILABLE if its updates cannot be made durable now. REQUIRES: the
  // shard is here.
  void Collect(ShardId shard, const Subscription& subscription, std::optional<Held> from,
               std::function<void(absl::StatusOr<ShardChange>)> done);

  // Calls `done` with all blocks of the subscription's dense tables on `shard` at one version, for any number of
  // subscribers; errors as Collect's. REQUIRES: the shard is here.
  using SharedSnapshot = std::shared_ptr<const DenseSnapshot>;
  void Snapshot(ShardId shard, const Subscription& subscription,
                std::function<void(absl::StatusOr<SharedSnapshot>)> done);

  // Where the snapshots count, and what subscribers hold of changes. Subscribers ask there for room before.
  const std::shared_ptr<BroadcastMemory>& memory() const { return memory_; }

 private:
  std::vector<const Table*> Wanted(const Subscription& subscription) const;
  // The term of what is sent of the shard: of its next update here, also before that. What a subscriber holds of an
  // older one may have been lost. On its executor, as the next.
  uint64_t TermOf(const Shard& shard) const;
  // Whether what a subscriber holds is part of what the shard has.
  bool Includes(const Shard& shard, const Held& held) const;
  // Calls `done` when what the shard holds now may be shown. On its executor.
  void AwaitShown(ShardId shard, std::function<void(const absl::Status&)> done);

  const ServingGate* const gate_;
  ShardSet* const shards_;
  CommitLog* const log_;
  const Catalog* const catalog_;
  const bool committed_only_;
  const std::shared_ptr<BroadcastMemory> memory_;
};

}  // namespace lodestone::server
