// Serves ParameterServer.Subscribe: a full anchor first, then at each broadcast what has changed.
//
// A subscriber has one round under way at most. A round visits the owned shards whose version differs from what the
// subscriber holds, collects the change of each from the store, packs changes into messages of about
// limits::kDeltaBytesTarget bytes and writes one at a time. A broadcast that comes during a round makes the next round
// follow it; further ones are skipped: a slow reader gets the newest values, nothing queues.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "grpcpp/support/slice.h"
#include "proto/admin.pb.h"
#include "proto/parameter_server.pb.h"
#include "server/store/delta_path.h"

namespace lodestone::server {

class Store;

// One subscriber's stream, as the Broadcaster sees it.
//
// The Broadcaster calls Write, Write, … Finish: never two at a time, no Write before OnWritten was called for the one
// before, Finish exactly once and never while a write is under way; after it the sink is not touched again. Calls come
// on any thread and must not block. The sink answers each Write with Subscriber::OnWritten, which may come from within.
//
// Of a shard's change that comes in several pieces, only the first has `anchor` set: a reader may forget what it held
// whenever it sees the flag.
class DeltaSink {
 public:
  virtual ~DeltaSink() = default;
  // Starts writing a delta: its header, without payload, and the payload.
  virtual void Write(v1::Delta delta, std::vector<grpc::Slice> payload) = 0;
  // Ends the stream.
  virtual void Finish(absl::Status status) = 0;
};

// Payload bytes sent by a server to all of its subscribers.
using BroadcastBytes = std::atomic<uint64_t>;

// One subscriber's progress. Made by Broadcaster::Add.
//
// Thread-safe. Keeps itself alive while the store collects for it; holds at most one shard's change and one message.
class Subscriber : public std::enable_shared_from_this<Subscriber> {
 public:
  struct Options {
    Incarnation worker = 0;
    std::string peer;
    DeltaPath::Subscription subscription;
    std::vector<ShardId> shards;                       // Owned, ascending.
    std::vector<std::optional<DeltaPath::Held>> held;  // Beside shards: what the reader says that it has.
  };
  Subscriber(Options options, Store* store, DeltaSink* sink, std::shared_ptr<BroadcastBytes> bytes_total);

  // Call once, when the sink is ready: the first Write or Finish may come from within. Until then the sink is not
  // touched, whatever happens.
  void Start();
  // The sink's Write has ended; not `ok`: the stream is broken.
  void OnWritten(bool ok);
  // The reader is gone, or the server shuts down: Finish follows with `status` once no write is under way. Only the
  // first call counts.
  void Cancel(absl::Status status);

  // For the Broadcaster: a table of the subscription is due.
  void Serve();
  bool SubscribedTo(TableId table) const;
  bool finished() const;
  void FillStatus(v1::SubscriberStatus* status) const;

 private:
  enum class Action { kNothing, kCollect, kWrite, kFinish };

  // Takes whatever steps can be taken; what a step's completion makes possible is taken by whoever pumps then.
  void Pump();
  Action NextAction() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Moves next_shard_ to the round's next shard with a change; false if there is none.
  bool FindNextShard() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PackMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnCollected(size_t shard_index, ShardChange change);

  // Constant after construction.
  const Options options_;
  Store* const store_;
  DeltaSink* const sink_;
  const std::shared_ptr<BroadcastBytes> bytes_total_;

  mutable Mutex mu_;
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  bool pumping_ ABSL_GUARDED_BY(mu_) = false;  // A thread is in Pump: it alone acts.
  bool due_ ABSL_GUARDED_BY(mu_) = true;       // A round is to follow; at first the anchor's.
  bool round_active_ ABSL_GUARDED_BY(mu_) = false;
  bool collecting_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);  // Why Finish is to follow.
  std::vector<std::optional<DeltaPath::Held>> held_
      ABSL_GUARDED_BY(mu_);                                        // What the reader has, or is sent, per shard.
  std::vector<bool> checked_ ABSL_GUARDED_BY(mu_);                 // Whether that is of the shard's past for certain.
  size_t next_shard_ ABSL_GUARDED_BY(mu_) = 0;                     // Index of the round's next shard.
  std::deque<ShardChange::Piece> pending_ ABSL_GUARDED_BY(mu_);    // Rest of the change collected last.
  v1::Delta message_ ABSL_GUARDED_BY(mu_);                         // The message being packed…
  std::vector<grpc::Slice> message_payload_ ABSL_GUARDED_BY(mu_);  // … its payload
  size_t message_bytes_ ABSL_GUARDED_BY(mu_) = 0;                  // … and that payload's size.
  uint64_t deltas_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t skipped_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

// All subscribers of a server, and the timer that serves them.
//
// Thread-safe. The store must outlive the Broadcaster and all streams (that is, the gRPC server).
class Broadcaster {
 public:
  // `subscribers_max`: streams at a time. Takes the store's broadcast listener.
  Broadcaster(Store* store, uint32_t subscribers_max);
  // Shuts down, then stops the timer.
  ~Broadcaster();

  // A subscriber that serves `sink` from its Start on. RESOURCE_EXHAUSTED if there are `subscribers_max`, UNAVAILABLE
  // before the server has its shards, and when it shuts down, INVALID_ARGUMENT without tables, and the store's errors
  // for its tables. After an error the sink is not touched.
  absl::StatusOr<std::shared_ptr<Subscriber>> Add(const v1::SubscribeRequest& request, std::string peer,
                                                  DeltaSink* sink);

  // Ends all streams with UNAVAILABLE, each once its write under way is over: this ps owns other shards now.
  void EndAll();
  // The same, and refuses new ones.
  void Shutdown();

  // Adds the subscribers, and sets server.broadcast_bytes.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  class Impl;
  const std::shared_ptr<Impl> impl_;
  std::thread timer_;
};

}  // namespace lodestone::server
