// A follower's stream, at the owner's end: items go out in order, several in a message, as fast as they are taken.
//
// Writes start without any lock: Wire::StartWrite usually sends at once, which takes time. So a piece that is queued
// under a lock is flushed after it (QueuedSends).
//
// Thread-safe. Keeps itself alive while its wire works for it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/slice.h"
#include "proto/replication.pb.h"
#include "server/auth/revocable.h"
#include "server/replication/follow_piece.h"

namespace lodestone::server {

class Replicator;

class FollowStream final : public Revocable, public std::enable_shared_from_this<FollowStream> {
 public:
  // What the stream goes over: gRPC (follow_streams.cc), or a simulation. At most one read and one write are under way.
  // OnDone is the last that it calls, after Finish; nothing is called within these functions.
  class Wire {
   public:
    virtual ~Wire() = default;
    virtual void StartRead(grpc::ByteBuffer* message) = 0;         // OnReadDone follows,
    virtual void StartWrite(const grpc::ByteBuffer* message) = 0;  // and OnWriteDone.
    virtual void Finish(const absl::Status& status) = 0;
    virtual void TryCancel() = 0;
  };
  // `wire` must live until OnDone.
  FollowStream(Replicator* replicator, Wire* wire) : replicator_(replicator), wire_(wire) {}

  // Call once. Unless `end` is OK, nothing is read, and the stream ends with it.
  void Start(const absl::Status& end);
  // Ends the stream once the write under way is over; what waits to be sent is dropped. With `now`, a write that does
  // not end is cut off.
  void End(absl::Status status, bool now = false);
  void Revoke(const absl::Status& why) override { End(why, /*now=*/true); }

  // Queues a piece after those before; Flush is to follow. Nothing happens once the stream ends.
  void Queue(FollowPieceRef piece);
  // Starts to write what is queued, unless a write is under way, which is followed by it. The caller holds no lock.
  void Flush();
  void Send(FollowPieceRef piece) {
    Queue(std::move(piece));
    Flush();
  }
  // Waits until little waits to be sent; false once the stream ends. It ends if a write takes longer than
  // `stalled_ms_max`.
  bool WaitForRoom(int64_t stalled_ms_max);
  // Bytes that wait to be sent, and that were handed to gRPC so far.
  uint64_t waiting_bytes() const;
  uint64_t sent_bytes() const;
  // How long the write under way has lasted; 0: there is none.
  int64_t WritingMs() const;
  // How long the stream has been open without its first message; 0: that has come.
  int64_t SilentMs() const;
  bool ended() const;

  // The follower, as its first message said. Set by the replicator while it takes that in.
  void SetFollower(uint32_t server, Incarnation incarnation);
  uint32_t server() const;
  Incarnation incarnation() const;
  // The end of a shard's updates on this stream, which stays open for its other shards: another ps follows that one. A
  // dropped shard comes back only with a new stream.
  void Drop(ShardId shard);
  bool HasDropped(ShardId shard) const;

  // The wire's: what was started has ended, the follower is gone, all has ended.
  void OnReadDone(bool ok);
  void OnWriteDone(bool ok);
  void OnCancel();
  void OnDone();

 private:
  // Starts whatever can be started now, but for writes: a read, the end.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Pack() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Replicator* const replicator_;
  Wire* const wire_;
  const SteadyTime time_;
  const int64_t opened_ms_ = time_.NowMs();

  // The wire's.
  std::shared_ptr<FollowStream> self_;  // From Start to OnDone.
  grpc::ByteBuffer incoming_;           // Belongs to the read under way.
  grpc::ByteBuffer outgoing_;           // Belongs to the write under way.

  mutable Mutex mu_;
  CondVar changed_;
  uint32_t server_ ABSL_GUARDED_BY(mu_) = 0;
  Incarnation incarnation_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<ShardId> dropped_ ABSL_GUARDED_BY(mu_);
  std::deque<FollowPieceRef> queue_ ABSL_GUARDED_BY(mu_);
  uint64_t queue_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t sent_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  int64_t writing_since_ms_ ABSL_GUARDED_BY(mu_) = 0;
  bool finishing_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);  // What the stream is to end with.
};

// Streams that got pieces while a lock was held, which are flushed by the destructor: to be declared above the lock.
// Not thread-safe.
class QueuedSends {
 public:
  QueuedSends() = default;
  QueuedSends(const QueuedSends&) = delete;
  QueuedSends& operator=(const QueuedSends&) = delete;
  ~QueuedSends() {
    for (const auto& stream : streams_) stream->Flush();
  }

  void Queue(const std::shared_ptr<FollowStream>& stream, FollowPieceRef piece) {
    stream->Queue(std::move(piece));
    if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
  }

 private:
  std::vector<std::shared_ptr<FollowStream>> streams_;  // Few.
};

}  // namespace lodestone::server
