// One follower of a shard that this ps owns: its state and stream, the updates that it has not confirmed, and the
// acknowledgements that wait for it.
//
// Updates for a follower that counts are kept until it has confirmed them: they are what holds the owner up. Those for
// one that does not count yet are kept only so that a broken stream can go on where it was, and are forgotten when they
// become many: such a follower costs its owner memory up to a limit, and never time.
//
// Not thread-safe: belongs to an OwnedShard. `all`, of all shards, must outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "common/base/types.h"
#include "server/replication/follow_stream.h"
#include "server/replication/pending_ack.h"
#include "server/replication/shard_sync.h"

namespace lodestone::server {

// Bytes of updates of all shards that wait for their followers' confirmation.
struct UnconfirmedBytes {
  std::atomic<uint64_t> counting{0};  // Of followers that count.
  std::atomic<uint64_t> others{0};    // Of those that do not count yet.
  uint64_t others_max = 0;            // Constant. What may be kept of these.
};

class ShardFollower {
 public:
  ShardFollower(uint32_t server, UnconfirmedBytes* all) : server_(server), all_(all) {}
  ShardFollower(const ShardFollower&) = delete;
  ShardFollower& operator=(const ShardFollower&) = delete;
  // REQUIRES: no acknowledgement waits.
  ~ShardFollower() { DropUnconfirmed(UINT64_MAX); }

  uint32_t server() const { return server_; }
  ShardSync& sync() { return sync_; }
  const ShardSync& sync() const { return sync_; }
  const std::shared_ptr<FollowStream>& stream() const { return stream_; }  // Null: nothing is sent.
  size_t unconfirmed() const { return unconfirmed_.size(); }
  uint64_t unconfirmed_bytes() const { return unconfirmed_bytes_; }
  // Since when the follower has confirmed nothing while acknowledgements wait; at most `patience_ms` later than the
  // oldest of these began, so that none waits for long behind others.
  std::optional<int64_t> silent_since_ms(int64_t patience_ms) const;
  // Of the oldest acknowledgement that waits.
  std::optional<int64_t> waiting_since_ms() const;

  // Sends an update to the follower, and keeps it until it is confirmed, or for a follower that does not count, while
  // there is room. REQUIRES: sync().KeepsUpdates().
  void Append(const FollowPieceRef& piece, QueuedSends* sends);
  // Has `ack` wait for the follower's confirmation of `version`.
  void Await(Version version, int64_t now_ms, PendingAckRef ack);
  // The follower has applied all up to `version`.
  void Confirm(Version version, int64_t now_ms, SettledAcks* settled);
  // Settles all that wait.
  void SettleAll(const absl::Status& status, SettledAcks* settled);
  // After sync() has become alone again: settles all that wait with `end`.
  void OnReleased(const absl::Status& end, SettledAcks* settled);

  // As ShardSync::Attach, and ends the stream before. One that resumes is sent what it lacks.
  ShardSync::Attached Attach(const std::shared_ptr<FollowStream>& stream, Version position, int64_t now_ms,
                             SettledAcks* settled, QueuedSends* sends);
  // Whether Attach would find ShardSync::Attached::kResumes.
  bool Resumes(Incarnation follower, Version position) const;
  // Sends `end` and the updates that came while the state was being sent; or these first, and then `end`, to a follower
  // that got updates instead of a state.
  void FinishState(FollowPieceRef end, QueuedSends* sends);
  void FinishUpdates(FollowPieceRef end, QueuedSends* sends);
  void Detach(int64_t now_ms);
  void EndStream(const absl::Status& status, bool now = false);
  // Whether its stream, which does not count, lags without end: what waits to be sent is more than `bytes_max`.
  bool IsHopeless(int64_t stalled_ms_max, uint64_t bytes_max) const;

 private:
  struct Wait {
    Version version = 0;
    int64_t since_ms = 0;
    PendingAckRef ack;
  };

  void DropUnconfirmed(Version up_to);
  std::optional<Version> oldest_kept() const;
  std::atomic<uint64_t>& BytesOfAll() { return counted_ ? all_->counting : all_->others; }
  // After sync_ may have begun or ceased to count.
  void Recount();

  const uint32_t server_;
  UnconfirmedBytes* const all_;
  bool counted_ = false;  // sync_.counts(), as far as unconfirmed_bytes_ is concerned.
  ShardSync sync_;
  std::shared_ptr<FollowStream> stream_;
  std::deque<FollowPieceRef> unconfirmed_;  // While sync_.KeepsUpdates().
  uint64_t unconfirmed_bytes_ = 0;
  std::deque<Wait> waits_;
  int64_t confirmed_ms_ = 0;  // When the follower confirmed more than before.
};

}  // namespace lodestone::server
