// The replication of one shard that this ps may own: its followers, and perhaps a learner, another one that gets a copy
// beside them and takes the place of one once the coordinator knows that it has all. An update is acknowledged when all
// of them that count have it; which of them is the learner matters to the coordinator alone.
//
// Not thread-safe: guarded by the Replicator's lock. `all`, of all shards, must outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/base/planted_defect.h"
#include "common/base/types.h"
#include "common/wire/shard_map.h"
#include "server/replication/follow_piece.h"
#include "server/replication/follow_stream.h"
#include "server/replication/pending_ack.h"
#include "server/replication/shard_follower.h"
#include "server/replication/shard_sync.h"

namespace lodestone::server {

class OwnedShard {
 public:
  explicit OwnedShard(UnconfirmedBytes* all) : all_(all) {}

  // Begins again, with nothing known of followers. REQUIRES: no acknowledgement waits.
  void Reset(bool owned, uint64_t term, int64_t now_ms);

  bool owned() const { return owned_; }
  uint64_t term() const { return term_; }  // In which this ps owns it.

  // All that are known, of each server one.
  const std::vector<std::unique_ptr<ShardFollower>>& followers() const { return followers_; }
  // The followers by the newest map, the first one first; the learner is none of them.
  std::vector<uint32_t> named() const { return named_.value_or(std::vector<uint32_t>()); }
  // Those of a server, of a stream, and of a life of a server; null: none.
  ShardFollower* Of(uint32_t server) const;
  ShardFollower* With(const FollowStream* stream) const;
  ShardFollower* OfLife(Incarnation follower) const;
  // The server's, new if there is none. UNAVAILABLE if the newest map names others and one of these counts, or if there
  // are too many: one of the two maps is old.
  absl::StatusOr<ShardFollower*> Begin(uint32_t server);

  // A newer map than before. Those that count no more by it are released: what waits for them is settled, with `end` if
  // too few copies are left (Held). Forgets those that it does not name. Returns how many were released.
  size_t SetMap(const ShardMap& map, ShardId shard, uint32_t in_sync_min, const absl::Status& end, int64_t now_ms,
                SettledAcks* settled);
  // This ps answers for the shard no more, as the newest map asks, and its first follower is to own it; 0: it does.
  void GiveUp(uint64_t handover, int64_t now_ms);
  // Whether that follower is `server`, and has all that there will be of it.
  bool NextOwnerHasAll(uint32_t server) const;

  // Copies that the coordinator counts on, this ps's own among them.
  uint32_t copies_in_sync() const;
  // Copies that hold the update at `version`, or will before it is acknowledged.
  uint32_t CopiesOf(Version version) const;
  // Since when it has fewer copies than are wanted, if it has: when a follower was released that is missed.
  int64_t lacks_since_ms() const { return lacks_since_ms_; }
  // Whether a newer map than that of `epoch` does not name the follower.
  bool IsOutOfMap(const ShardFollower& one, uint64_t epoch) const {
    return map_epoch_ > epoch && !IsNamed(one.server());
  }
  // The oldest acknowledgement that waits, and for which ps.
  struct Waiting {
    int64_t since_ms = 0;
    uint32_t server = 0;
  };
  std::optional<Waiting> OldestWait() const;

  // The newest update.
  Version appended() const { return appended_; }
  void SetAppended(Version version);
  // Whether updates are kept for any.
  bool KeepsUpdates() const;
  // Sends an update to those that it is kept for.
  void Append(const FollowPieceRef& piece, QueuedSends* sends);
  // Whether any has yet to confirm `version` before it is acknowledged.
  bool HoldsUp(Version version) const;
  // Has `ack` wait for each of those.
  void Await(Version version, int64_t now_ms, const PendingAckRef& ack);
  void SettleAll(const absl::Status& status, SettledAcks* settled);
  void EndStreams(const absl::Status& status);

  // After a follower has become alone again: settles all that wait for it, with `end` if fewer than `in_sync_min`
  // copies are in sync without it.
  void OnReleased(ShardFollower* one, uint32_t in_sync_min, const absl::Status& end, int64_t now_ms,
                  SettledAcks* settled);

 private:
  bool IsNamed(uint32_t server) const;
  // Whether acknowledgements wait for it to have `version`.
  bool IsAwaited(const ShardFollower& one, Version version) const;

  UnconfirmedBytes* all_;
  bool owned_ = false;
  uint64_t term_ = 0;
  int64_t lacks_since_ms_ = 0;
  Version appended_ = 0;
  uint64_t map_epoch_ = 0;                      // Of the newest map; 0: none has come.
  std::optional<std::vector<uint32_t>> named_;  // By it; nullopt: by no map yet.
  std::optional<uint32_t> named_learner_;
  std::vector<std::unique_ptr<ShardFollower>> followers_;
};

}  // namespace lodestone::server
