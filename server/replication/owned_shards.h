// The replication of all shards that this ps may own, as far as it concerns them together: what time brings, what the
// coordinator is to hear of their followers and has heard, and their status.
//
// Not thread-safe: guarded by the Replicator's lock. `unconfirmed` must outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "common/wire/shard_map.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"
#include "server/replication/owned_shard.h"
#include "server/replication/pending_ack.h"

namespace lodestone::server {

class OwnedShards {
 public:
  struct Limits {
    int64_t patience_ms = 0;       // A follower that confirms nothing for so long is to count no more.
    int64_t stalled_ms_max = 0;    // A stream that takes nothing for so long is cut off;
    uint64_t queue_bytes_max = 0;  // so is one of a follower that does not count, when as much waits to be sent.
    uint32_t in_sync_min = 1;      // Copies, the owner's counted, without which no update is acknowledged.
    uint32_t replicas = 2;         // Copies, the owner's counted, that are to be.
  };
  OwnedShards(uint32_t shards, const Limits& limits, UnconfirmedBytes* unconfirmed);

  size_t size() const { return shards_.size(); }
  OwnedShard& operator[](ShardId shard) { return shards_[shard]; }
  const OwnedShard& operator[](ShardId shard) const { return shards_[shard]; }

  // Why an update should not come now: UNAVAILABLE if there are fewer copies in sync than are wanted.
  absl::Status CheckCopies(ShardId shard) const;
  // Whether the update at `version` may be acknowledged once nothing holds it up: UNAVAILABLE if fewer copies will have
  // it than are wanted.
  absl::Status CheckHeld(ShardId shard, Version version) const;
  // A newer map than before: see OwnedShard. REQUIRES: this ps owns the shard, by the map too.
  size_t SetMap(const ShardMap& map, ShardId shard, int64_t now_ms, SettledAcks* settled) {
    return shards_[shard].SetMap(map, shard, limits_.in_sync_min, NotHeld(shard), now_ms, settled);
  }

  // Whether updates of any are kept.
  bool KeepUpdates() const;
  // Follows up on what time brings: impatience, a lease that has ended (`may_serve`), followers that lag without end.
  void CheckTime(int64_t now_ms, const absl::Status& may_serve, SettledAcks* settled);
  // A shard's follower is to count no more; `late`: see ShardSync::Leave. REQUIRES: it counts.
  void Leave(ShardFollower* follower, const char* why, bool late = false);
  void LogLeaving();
  // The stream is gone.
  void Detach(const FollowStream* stream, int64_t now_ms);
  void SettleAll(const absl::Status& status, SettledAcks* settled);

  // Adds what the coordinator is to learn; false if that is nothing.
  bool CollectReports(v1::ReportSyncRequest* request);
  // The coordinator's answer to a report. True if a follower counts no more by it.
  bool TakeOutcome(const v1::ReportSyncRequest::Report& report, bool accepted, uint64_t epoch, int64_t now_ms,
                   SettledAcks* settled);

  // Sets the fields of replication that are about owned shards.
  void FillStatus(v1::ReplicationStatus* status) const;
  // The oldest acknowledgement that waits: since when, for which ps, and of which shard.
  struct Waiting {
    int64_t since_ms = 0;
    uint32_t server = 0;
    ShardId shard = 0;
  };
  std::optional<Waiting> OldestWait() const;
  // Adds the wait for copies, if updates are refused for lack of them.
  void FillWait(const std::string& who, int64_t now_ms, v1::StatusResponse* status) const;

 private:
  absl::Status NotHeld(ShardId shard) const;

  const Limits limits_;
  std::vector<OwnedShard> shards_;                              // By id.
  std::map<std::pair<uint32_t, const char*>, size_t> leaving_;  // To be logged: shards.
};

}  // namespace lodestone::server
