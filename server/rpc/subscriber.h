// One subscriber of broadcasts: a full anchor first, then at each broadcast the changes since the last.
//
// A subscriber has at most one round under way. A round visits the owned shards that may hold something of the
// subscription and whose version differs from what the reader holds, takes the change of each from a snapshot that it
// shares with other subscribers (shared_snapshots.h) or, with rows or at a position that this ps has not sent, has it
// collected from the store, packs changes into messages of about limits::kDeltaBytesTarget bytes and writes one at a
// time. A broadcast during a round makes one more round follow it;
// further ones are skipped: a slow reader gets the newest values, and nothing queues.
//
// What it keeps in memory is counted with that of all others (DeltaPath::memory). Before it has a large change
// collected (more than limits::kSmallChangesBytes), it waits for its turn there; for a snapshot all wait together that
// want it. What it has packed is sent before it waits: one that waits keeps nothing.
//
// Thread-safe: what happens is noted where it happens, and the steps that follow are taken on the broadcaster's thread
// (broadcast_queue.h). Keeps itself alive while the store collects for it; holds at most one shard's change and one
// message. The store and the sink must outlive it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "grpcpp/support/slice.h"
#include "proto/admin.pb.h"
#include "proto/parameter_server.pb.h"
#include "server/rpc/delta_sink.h"
#include "server/store/delta_path.h"
#include "server/store/shard_change.h"

namespace lodestone::server {

class BroadcastQueue;
class DenseSnapshot;
class PinnedBytes;
class SharedSnapshots;
class Store;

// Payload bytes sent by a server to all of its subscribers.
using BroadcastBytes = std::atomic<uint64_t>;

class Subscriber : public std::enable_shared_from_this<Subscriber> {
 public:
  struct Options {
    Incarnation worker = 0;
    std::string peer;
    DeltaPath::Subscription subscription;
    bool dense = false;                                // It wants no rows.
    std::vector<ShardId> shards;                       // Owned, and of the subscription; ascending.
    std::vector<std::optional<DeltaPath::Held>> held;  // Per shard: what the reader reports that it has.
  };
  Subscriber(Options options, Store* store, DeltaSink* sink, std::shared_ptr<BroadcastQueue> queue,
             std::shared_ptr<SharedSnapshots> snapshots, std::shared_ptr<BroadcastBytes> bytes_total);

  // Distinct, and growing: one made later has a greater one.
  uint64_t id() const { return id_; }
  const DeltaPath::Subscription& subscription() const { return options_.subscription; }

  // Begins with the first round. Call once, when the sink is ready; it is not touched before.
  void Start();
  // Completes the sink's Write; not `ok`: the stream is broken.
  void OnWritten(bool ok);
  // Ends the stream: Finish follows with `status` once no write is under way. Only the first call counts.
  void Cancel(absl::Status status);

  // Requests a round: a table of the subscription is due.
  void Serve();
  // `tables` ascend.
  bool SubscribedToAny(std::span<const TableId> tables) const;

  // About once a second while others wait for memory: as DeltaSink.
  void EndIfUnread(int64_t now_ms);

  // Takes all steps that are possible now. For the queue's thread.
  void Run();
  bool finished() const;
  void FillStatus(v1::SubscriberStatus* status) const;

 private:
  enum class Action { kNothing, kAwaitRoom, kCollect, kWrite, kFinish };
  // What is not kept any more: let go of without the lock, because others may go on by it.
  using Dropped = std::vector<std::shared_ptr<const void>>;

  // Has the queue run it.
  void Post();
  // Takes one step; false if there was none to take.
  bool RunStep();
  Action NextAction(Dropped* dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropPacked(Dropped* dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Has room_ for the change of the next shard; false if there is none now.
  bool TakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether others keep the snapshot that it is taken from, or have it collected.
  bool OthersKeepNext() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // About how many bytes that change will keep.
  uint64_t NextChangeBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begins to wait for its turn in the line for memory, without the lock; and the turn has come.
  void AwaitRoom(uint64_t bytes);
  void OnRoom(std::shared_ptr<PinnedBytes> room);
  // Moves next_shard_ to the round's next shard with a change; false if there is none.
  bool FindNextShard() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PackMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the change from there is taken from a snapshot that others may share.
  bool SharesSnapshot(const std::optional<DeltaPath::Held>& from, bool checked) const;
  // Has the change of a shard collected, or takes it from a snapshot. Without the lock.
  void Collect(size_t shard_index, const std::optional<DeltaPath::Held>& from, bool checked, uint64_t since,
               bool at_once);
  void OnCollectFailed(const absl::Status& status);
  void OnSnapshot(size_t shard_index, const std::shared_ptr<const DenseSnapshot>& snapshot, bool newer);
  // `kept_bytes`: what the change keeps in memory.
  void OnChange(size_t shard_index, std::shared_ptr<const ShardChange> change, uint64_t kept_bytes);

  // Constant after construction.
  const uint64_t id_;
  const Options options_;
  std::vector<TableId> tables_;        // Of the subscription, ascending.
  std::vector<uint64_t> dense_bytes_;  // Per shard: what a snapshot of it keeps in memory.
  Store* const store_;
  DeltaSink* const sink_;
  const std::shared_ptr<BroadcastQueue> queue_;
  const std::shared_ptr<SharedSnapshots> snapshots_;
  const std::shared_ptr<BroadcastBytes> bytes_total_;

  mutable Mutex mu_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool posted_ ABSL_GUARDED_BY(mu_) = false;       // The queue is to run it.
  bool running_ ABSL_GUARDED_BY(mu_) = false;      // A thread is in Run: only it takes steps.
  bool due_ ABSL_GUARDED_BY(mu_) = true;           // Another round is requested; at first the anchor's.
  uint64_t due_since_ ABSL_GUARDED_BY(mu_) = 0;    // When (SharedSnapshots::Now) it was requested last,
  uint64_t round_since_ ABSL_GUARDED_BY(mu_) = 0;  // and the round under way.
  bool round_active_ ABSL_GUARDED_BY(mu_) = false;
  bool collecting_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);  // The status of the Finish to come.
  std::vector<std::optional<DeltaPath::Held>> held_
      ABSL_GUARDED_BY(mu_);                                         // What the reader has, or is sent, per shard.
  std::vector<bool> checked_ ABSL_GUARDED_BY(mu_);                  // Per shard: this ps has sent it itself.
  size_t next_shard_ ABSL_GUARDED_BY(mu_) = 0;                      // Index of the round's next shard.
  std::shared_ptr<const ShardChange> change_ ABSL_GUARDED_BY(mu_);  // Collected last, and not packed whole.
  size_t next_piece_ ABSL_GUARDED_BY(mu_) = 0;                      // Of it.
  v1::Delta message_ ABSL_GUARDED_BY(mu_);                          // The message being packed…
  std::vector<grpc::Slice> message_payload_ ABSL_GUARDED_BY(mu_);   // … its payload
  size_t message_bytes_ ABSL_GUARDED_BY(mu_) = 0;                   // … and that payload's size.
  // The changes that are packed in it, which others may share until it is written.
  std::vector<std::shared_ptr<const ShardChange>> packed_ ABSL_GUARDED_BY(mu_);
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mu_) = 0;                 // That these and change_ keep in memory.
  uint64_t row_bytes_ ABSL_GUARDED_BY(mu_) = 0;                  // Of an anchor, as of the round's begin.
  std::optional<uint64_t> last_row_bytes_ ABSL_GUARDED_BY(mu_);  // Of the last change with rows that was no anchor.
  bool awaits_room_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<PinnedBytes> room_ ABSL_GUARDED_BY(mu_);  // For the change that is being collected, or is to be.
  uint64_t deltas_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t skipped_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lodestone::server
