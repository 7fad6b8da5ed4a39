// The shards that a copy follows by broadcasts: which have come, at which versions, and whether there is anything new.
//
// Thread-safe. The copies derive from it: their contents are under the same lock.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "worker/client/types.h"

namespace lodestone::worker {

class FollowedShards {
 public:
  // Waits until the stamp is above `stamp`, at most so long (negative: for ever). Returns the stamp: 0 before all
  // wanted shards have come.
  uint64_t Wait(uint64_t stamp, int64_t timeout_ms);

 protected:
  // `shards`: of the cluster. None is wanted.
  explicit FollowedShards(uint32_t shards)
      : wanted_(shards, false), come_(shards, false), anchoring_(shards, false), versions_(shards, 0) {}
  ~FollowedShards() = default;

  void Want(ShardId shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The number of a change, greater than those before.
  uint64_t NewStamp() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ++stamp_; }
  uint64_t stamp() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stamp_; }
  // An anchor begins, which replaces what has come of the shard: the version that it ends with may be lower than the
  // last.
  void BeginAnchor(ShardId shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether it is not complete.
  bool IsAnchoring(ShardId shard) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return anchoring_[shard]; }
  // The shard's change is complete. `news`: it has brought something, for which Wait is to return.
  void NoteShard(ShardId shard, Version version, bool news) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // UNAVAILABLE until all wanted shards have come.
  absl::Status CheckComplete() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  const ShardVersions& versions() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return versions_; }

  Mutex mu_;

 private:
  CondVar changed_;
  std::vector<bool> wanted_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> come_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> anchoring_ ABSL_GUARDED_BY(mu_);
  ShardVersions versions_ ABSL_GUARDED_BY(mu_);
  uint32_t missing_ ABSL_GUARDED_BY(mu_) = 0;  // Wanted shards of which nothing has come yet.
  uint64_t stamp_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace lodestone::worker
