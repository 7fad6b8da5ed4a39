// The replication of one shard that this ps may own: its follower, and its learner, another one that gets a copy beside
// it and takes its place once the coordinator knows that it has all. While both count, an update is acknowledged when
// both have it.
//
// Not thread-safe: guarded by the Replicator's lock. `all`, of all shards, must outlive it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "common/base/planted_defect.h"
#include "common/base/types.h"
#include "server/replication/follow_piece.h"
#include "server/replication/follow_stream.h"
#include "server/replication/pending_ack.h"
#include "server/replication/shard_follower.h"
#include "server/replication/shard_sync.h"

namespace lodestone::server {

class OwnedShard {
 public:
  explicit OwnedShard(UnconfirmedBytes* all) : follower_(all), learner_(all) {}

  // Begins again, with nothing known of a follower. REQUIRES: no acknowledgement waits.
  void Reset(bool owned, uint64_t term, int64_t now_ms);

  bool owned() const { return owned_; }
  uint64_t term() const { return term_; }  // In which this ps owns it.
  ShardFollower& follower() { return follower_; }
  const ShardFollower& follower() const { return follower_; }
  ShardFollower& learner() { return learner_; }
  const ShardFollower& learner() const { return learner_; }
  std::array<ShardFollower*, 2> both() { return {&follower_, &learner_}; }
  std::array<const ShardFollower*, 2> both() const { return {&follower_, &learner_}; }
  // The one that `stream` is of, or is to be: a ps that is known stays what it is.
  ShardFollower& Of(const FollowStream& stream, ShardId shard);
  // A map of `epoch` names the shard's follower (index plus one; 0: none).
  void SetNamed(uint32_t follower, uint64_t epoch);
  // Whether `stream` would oust a follower that counts, though the newest map names another: one of the two maps is
  // old.
  bool WouldOust(const FollowStream& stream, ShardId shard);
  // The one that has this stream; null: none.
  ShardFollower* With(const FollowStream* stream);
  // The one that a report, which names `follower` (0: it names none), is of.
  ShardFollower& ReportedOf(Incarnation follower);

  // When it was last without a follower that counts.
  int64_t alone_ms() const { return alone_ms_; }
  // The oldest acknowledgement that waits, and for which ps.
  struct Waiting {
    int64_t since_ms = 0;
    uint32_t server = 0;
  };
  std::optional<Waiting> OldestWait() const;

  // The newest update.
  Version appended() const { return follower_.sync().appended(); }
  void SetAppended(Version version);
  // Whether updates are kept for any of the two.
  bool KeepsUpdates() const { return follower_.sync().KeepsUpdates() || learner_.sync().KeepsUpdates(); }
  // Sends an update to those that it is kept for.
  void Append(const FollowPieceRef& piece, QueuedSends* sends);
  // Whether any has yet to confirm `version` before it is acknowledged.
  bool HoldsUp(Version version) const {
    return follower_.sync().HoldsUp(version) ||
           (learner_.sync().HoldsUp(version) && !Planted(Defect::kLearnerNotAwaited));
  }
  // Has `ack` wait for each of those.
  void Await(Version version, int64_t now_ms, const PendingAckRef& ack);
  void SettleAll(const absl::Status& status, SettledAcks* settled);
  void EndStreams(const absl::Status& status);

  // After the follower has become alone again: settles all that wait for it with `end`.
  void OnReleased(const absl::Status& end, int64_t now_ms, SettledAcks* settled);
  // The coordinator knows the learner as the follower that counts, from `epoch` on. What waits for the one before need
  // wait no more: the learner has it, or is waited for.
  void LearnerFollows(ShardId shard, uint64_t epoch, SettledAcks* settled);

 private:
  bool owned_ = false;
  uint64_t term_ = 0;
  int64_t alone_ms_ = 0;
  std::optional<uint32_t> named_;  // SetNamed; nullopt: by no map yet.
  uint64_t named_epoch_ = 0;
  ShardFollower follower_;
  ShardFollower learner_;
};

}  // namespace lodestone::server
