// One subscriber of broadcasts: a full anchor first, then at each broadcast the changes since the last.
//
// A subscriber has at most one round under way. A round visits the owned shards whose version differs from what the
// reader holds, collects the change of each from the store, packs changes into messages of about
// limits::kDeltaBytesTarget bytes and writes one at a time. A broadcast during a round makes one more round follow it;
// further ones are skipped: a slow reader gets the newest values, and nothing queues.
//
// Thread-safe: what happens is noted where it happens, and the steps that follow are taken on the broadcaster's thread
// (broadcast_queue.h). Keeps itself alive while the store collects for it; holds at most one shard's change and one
// message. The store and the sink must outlive it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
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
class Store;

// Payload bytes sent by a server to all of its subscribers.
using BroadcastBytes = std::atomic<uint64_t>;

class Subscriber : public std::enable_shared_from_this<Subscriber> {
 public:
  struct Options {
    Incarnation worker = 0;
    std::string peer;
    DeltaPath::Subscription subscription;
    std::vector<ShardId> shards;                       // Owned, ascending.
    std::vector<std::optional<DeltaPath::Held>> held;  // Per shard: what the reader reports that it has.
  };
  Subscriber(Options options, Store* store, DeltaSink* sink, std::shared_ptr<BroadcastQueue> queue,
             std::shared_ptr<BroadcastBytes> bytes_total);

  // Distinct, and growing: one made later has a greater one.
  uint64_t id() const { return id_; }

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

  // Takes all steps that are possible now. For the queue's thread.
  void Run();
  bool finished() const;
  void FillStatus(v1::SubscriberStatus* status) const;

 private:
  enum class Action { kNothing, kCollect, kWrite, kFinish };

  // Has the queue run it.
  void Post();
  Action NextAction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Moves next_shard_ to the round's next shard with a change; false if there is none.
  bool FindNextShard() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PackMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnCollected(size_t shard_index, ShardChange change);

  // Constant after construction.
  const uint64_t id_;
  const Options options_;
  std::vector<TableId> tables_;  // Of the subscription, ascending.
  Store* const store_;
  DeltaSink* const sink_;
  const std::shared_ptr<BroadcastQueue> queue_;
  const std::shared_ptr<BroadcastBytes> bytes_total_;

  mutable Mutex mu_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool posted_ ABSL_GUARDED_BY(mu_) = false;   // The queue is to run it.
  bool running_ ABSL_GUARDED_BY(mu_) = false;  // A thread is in Run: only it takes steps.
  bool due_ ABSL_GUARDED_BY(mu_) = true;       // Another round is requested; at first the anchor's.
  bool round_active_ ABSL_GUARDED_BY(mu_) = false;
  bool collecting_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);  // The status of the Finish to come.
  std::vector<std::optional<DeltaPath::Held>> held_
      ABSL_GUARDED_BY(mu_);                                        // What the reader has, or is sent, per shard.
  std::vector<bool> checked_ ABSL_GUARDED_BY(mu_);                 // Per shard: this ps has sent it itself.
  size_t next_shard_ ABSL_GUARDED_BY(mu_) = 0;                     // Index of the round's next shard.
  std::deque<ShardChange::Piece> pending_ ABSL_GUARDED_BY(mu_);    // Rest of the change collected last.
  v1::Delta message_ ABSL_GUARDED_BY(mu_);                         // The message being packed…
  std::vector<grpc::Slice> message_payload_ ABSL_GUARDED_BY(mu_);  // … its payload
  size_t message_bytes_ ABSL_GUARDED_BY(mu_) = 0;                  // … and that payload's size.
  uint64_t deltas_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t skipped_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lodestone::server
