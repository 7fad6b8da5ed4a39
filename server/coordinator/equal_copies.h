// The equal copies of a cluster's shards: for each shard, the server beside its owner whose copy, on its disk, is as
// good as the owner's. Where both ended together, either of them can serve the shard when it comes back.
//
// A copy is equal from when the life of its server ends while the shard is in sync: then it has everything that was
// acknowledged. Or its server was the owner, and the follower that was in sync, or had an equal copy, has taken its
// place, also as planned; or its server was the other one of two followers in sync then. It is equal until the owner
// may acknowledge something without it: until a present life of the owner is told so, by a map or the answer to a
// report. An owner whose life has ended can be told nothing, and acknowledges nothing, also where its process lives on
// behind a cut network: its report is refused, and its lease is over by its own clock.
//
// That it is equal no more is saved before the owner is told (Membership::Route, ReportSync), so that another life of
// the coordinator goes on with what is true.
//
// A server comes back with its equal copies if it proves them: with the folder of its last life that the coordinator
// knows, which no other has had since, on a machine that has not gone down since, which may take the end of a log with
// it, unless the disk had that before it counted (ServerData.whole). Otherwise they are equal no more. Where a process
// joins again after its lease had ended, its copies are asleep: its disk has what it had, so that nobody serves less;
// but it serves them only once it is started again, as it may have given them up for another one's.
//
// Not thread-safe: belongs to a ShardAssignment.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/types.h"
#include "proto/coordinator_state.pb.h"

namespace lodestone::server {

class EqualCopies {
 public:
  explicit EqualCopies(uint32_t shards) : holders_(shards), asleep_(shards) {}

  // The server that has one, as index plus one; 0: none.
  uint32_t HolderOf(ShardId shard) const { return holders_[shard]; }
  bool IsWith(uint32_t server, ShardId shard) const { return holders_[shard] == server + 1; }

  bool IsAsleep(ShardId shard) const { return asleep_[shard]; }

  void Note(ShardId shard, uint32_t server) { Set(shard, server + 1, false); }
  void SetAsleep(ShardId shard, bool asleep) { Set(shard, holders_[shard], asleep); }
  void Forget(ShardId shard) { Set(shard, 0, false); }

  // A number that grows with every change of what Save gives.
  uint64_t changes() const { return changes_; }
  // Adds them to a saved state: those of shards whose owner has `ended` where earlier versions look for them, and the
  // others elsewhere, as an earlier version may tell their owners something that it has not saved.
  void Save(absl::FunctionRef<bool(ShardId)> ended, v1::CoordinatorState* state) const;
  // REQUIRES: a state that CheckState accepts, of as many shards.
  void Restore(const v1::CoordinatorState& state);

 private:
  void Set(ShardId shard, uint32_t holder, bool asleep);

  std::vector<uint32_t> holders_;  // By shard.
  std::vector<bool> asleep_;       // Of those that are held.
  uint64_t changes_ = 0;
};

}  // namespace lodestone::server
