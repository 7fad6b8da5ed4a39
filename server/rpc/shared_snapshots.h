// The snapshots of shards that subscribers share: of those that are due together, one has the blocks of a shard
// collected, and all are sent from that. So a shard's executor is visited once, and its blocks are kept in memory once,
// however many subscribers there are.
//
// Time is counted in collections here: what begins after Now() was called holds all updates that had been applied by
// then.
//
// Thread-safe. Shared by the subscribers; holds no snapshot itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "server/store/delta_path.h"
#include "server/store/dense_snapshot.h"

namespace lodestone::server {

class SharedSnapshots : public std::enable_shared_from_this<SharedSnapshots> {
 public:
  // `deltas` must outlive the executors.
  explicit SharedSnapshots(DeltaPath* deltas) : deltas_(deltas) {}

  uint64_t Now() const;

  // Calls `done`, perhaps from within, else on an executor's thread, with a snapshot of the subscription's dense tables
  // on `shard` that began after `since`, or `any` that is still in use; `newer`: it began after `since`. Errors
  // as DeltaPath::Snapshot's. A new one that is large, by its `bytes`, waits for its turn in the memory for broadcasts,
  // once for all who want it; but `at_once` for one who keeps there what others wait for.
  using Done = std::function<void(absl::StatusOr<DeltaPath::SharedSnapshot>, bool newer)>;
  void Get(ShardId shard, const DeltaPath::Subscription& subscription, uint64_t since, bool any, uint64_t bytes,
           bool at_once, Done done);
  // Whether Get would take one that others keep, or have collected now.
  bool Has(ShardId shard, const DeltaPath::Subscription& subscription, uint64_t since, bool any) const;

 private:
  struct Key {
    ShardId shard = 0;
    std::vector<TableId> tables;  // Ascending.
    bool operator==(const Key&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Key& key) {
      return H::combine(std::move(h), key.shard, key.tables);
    }
  };
  struct Waiter {
    uint64_t since = 0;
    Done done;
  };
  struct Entry {
    uint64_t began = 0;  // The newest collection.
    std::weak_ptr<const DenseSnapshot> snapshot;
    bool collecting = false;
    bool awaits_room = false;  // A collection begins once there is.
    std::vector<Waiter> waiters;
  };
  using Room = BroadcastMemory::Room;  // For a collection until it is there; null: it needs none.

  static Key KeyOf(ShardId shard, const DeltaPath::Subscription& subscription);
  uint64_t Begin(Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AwaitRoom(const Key& key, const DeltaPath::Subscription& subscription, uint64_t bytes);
  void OnRoom(const Key& key, const DeltaPath::Subscription& subscription, Room room);
  void Collect(const Key& key, const DeltaPath::Subscription& subscription, uint64_t began, Room room);
  void OnCollected(const Key& key, uint64_t began, const absl::StatusOr<DeltaPath::SharedSnapshot>& snapshot);
  // Drops the entries of which nobody holds the snapshot, if there are many entries.
  void Purge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  DeltaPath* const deltas_;

  mutable Mutex mu_;
  uint64_t now_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<Key, Entry> entries_ ABSL_GUARDED_BY(mu_);
  size_t purge_at_ ABSL_GUARDED_BY(mu_) = 1024;
};

}  // namespace lodestone::server
