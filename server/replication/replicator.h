// The owner's side of replication: sends the updates of the shards that this ps owns to their followers, and knows
// which of them a follower holds.
//
// A shard is alone, or has followers that count (are in sync): then an update may be acknowledged only once each of
// these has confirmed it, because the coordinator may make any the owner at any moment. A follower comes to count in
// this order: it has got the shard's state and all updates since; from then on acknowledgements wait for it; it has
// confirmed all that was acknowledged before; the coordinator gets a report, and has it saved. A learner does the same,
// and is in the place of a follower then, which counts until a map without it comes (OwnedShard). It ceases to count in
// the opposite one: a follower that does not confirm for `patience_ms`, or is gone for so long, still holds up
// acknowledgements until the coordinator has it saved that it counts no more. An owner that was replaced meanwhile
// learns that from the answer, and acknowledges nothing ever. (ShardSync has the states.)
//
// Thread-safe. The store must outlive it; it must outlive the gRPC server that its streams are of, and all calls of the
// store's.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/simulation.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "common/wire/shard_map.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/replication.grpc.pb.h"
#include "server/auth/access.h"
#include "server/replication/copy_pace.h"
#include "server/replication/follow_stream.h"
#include "server/replication/follow_streams.h"
#include "server/replication/newest_updates.h"
#include "server/replication/owned_shards.h"
#include "server/replication/pending_ack.h"
#include "server/replication/replica_verifier.h"
#include "server/shard/shard.h"
#include "server/store/replica_sink.h"

namespace lodestone::server {

class Store;
class UpdateLog;

class Replicator final : public ReplicaSink {
 public:
  struct Options {
    std::string cluster;
    uint32_t shards = 1;
    uint64_t seed = 1;
    uint32_t server = 0;       // This ps's index.
    bool replicated = true;    // All shards are to have followers; otherwise one has while it moves.
    uint32_t in_sync_min = 1;  // cluster.in_sync_min.
    uint32_t replicas = 2;     // cluster.replicas.
    int64_t patience_ms = 2500;
    int64_t stalled_ms_max = 10'000;  // A stream that takes nothing for so long, or never starts, is cut off.
    // Of updates that a follower which counts has not confirmed, on average of those that there are to be: pushes wait
    // then. A follower that does not count is cut off when as much waits to be sent to it; half of it is kept for all
    // of them.
    uint64_t queue_bytes_max = limits::kFollowQueueBytesMax;
    // Coordinator.ReportSync; may block, called on a thread of its own.
    std::function<absl::StatusOr<v1::ReportSyncResponse>(const v1::ReportSyncRequest&)> report;
    std::function<void()> ask_route;          // The shard map seems to be old.
    std::function<absl::Status()> may_serve;  // Not OK: the lease has ended, and nothing can be acknowledged.
    Access* access = nullptr;                 // Checks the caller of a follower; null: any may follow.
    std::function<UpdateLog*()> updates;      // See Bootstrap::Sources.
    // At which followers are sent states and logs while pushes come; 0: unlimited.
    uint64_t copy_bytes_per_second = limits::kCopyBytesPerSecond;
  };
  // `newest` gets the updates of owned shards, and must outlive it.
  Replicator(Options options, Store* store, NewestUpdates* newest);
  ~Replicator() override;

  // This ps owns the shard from now on, in `term` (before the store takes updates for it), or not any more (after it
  // took the last one): calls that wait get ABORTED.
  void Own(ShardId shard, uint64_t term);
  void Disown(ShardId shard);
  // This ps answers for the shard no more, as a map with this number of a handover asks; 0: it does again. Reports it
  // to the coordinator when its follower has all.
  void GiveUp(ShardId shard, uint64_t handover);
  // Whether it was given up to `owner`, which has all: what this ps has of the shard is the past of that one's.
  bool NextOwnerHasAll(ShardId shard, uint32_t owner) const;
  // The term in which this ps owns the shard.
  uint64_t TermOf(ShardId shard) const;
  // A newer map than those before.
  void SetMap(const ShardMap& map);

  // ReplicaSink.
  void Append(std::span<const ShardLog::Record> records, const std::shared_ptr<const void>& keep) override;
  void Await(std::span<const Position> positions, Done done) override;
  bool engaged() const override { return engaged_.load(std::memory_order_acquire); }
  bool always_engaged() const override { return options_.replicated; }
  absl::Status CheckCopies(ShardId shard) override;
  absl::Status health() const override;

  // Replication.Follow, over gRPC, or another wire.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Open(grpc::CallbackServerContext* context);
  std::shared_ptr<FollowStream> Open(FollowStream::Wire* wire);
  // For streams. After an error of these the stream is to end with it.
  absl::Status OnStart(const std::shared_ptr<FollowStream>& stream, const v1::FollowStart& start);
  absl::Status OnAcks(FollowStream* stream, const v1::FollowAcks& acks);
  void OnClosed(FollowStream* stream);

  // For bootstraps, about one shard; UNAVAILABLE if the stream has ended or the shard has another owner. Resume sends
  // its updates from `position` on, if those are kept in memory. Otherwise, false, it has the follower before leave.
  absl::StatusOr<bool> Resume(const std::shared_ptr<FollowStream>& stream, const v1::ShardPosition& position);
  // Begins to keep its updates, to be sent once what is wanted has been; waits until the follower before has left.
  enum class Wanted {
    kUpdates,  // Those up to Attached::version; FinishUpdates follows.
    kState,    // Attached::state; FinishState follows.
  };
  struct Attached {
    bool resumes = false;  // Nothing need be sent nor finished: the updates from `position` on have been kept.
    Version version = 0;
    uint64_t mark = 0;  // Of the update that made it; 0: unknown.
    std::optional<Shard::State> state;
  };
  absl::StatusOr<Attached> Attach(const std::shared_ptr<FollowStream>& stream, const v1::ShardPosition& position,
                                  Wanted wanted);
  // Sends `end`, and the updates that came meanwhile. UNAVAILABLE if the follower has another stream now.
  absl::Status FinishState(const std::shared_ptr<FollowStream>& stream, ShardId shard, FollowPieceRef end);
  // Sends the updates that came meanwhile, and where the shard is now.
  absl::Status FinishUpdates(const std::shared_ptr<FollowStream>& stream, ShardId shard);

  // Admin.VerifyReplicas.
  absl::StatusOr<v1::VerifyReplicasResponse> Verify() { return verifier_.Verify(); }

  // Nothing is acknowledged any more, calls that wait get UNAVAILABLE, and all streams end. One thread calls it.
  void Shutdown();

  // Sets the fields of replication that are about owned shards, and adds the waits.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  absl::StatusOr<bool> TryResume(const std::shared_ptr<FollowStream>& stream, const v1::ShardPosition& position);
  // As Attach, without waiting; nullopt if the follower before counts still. On the shard's executor.
  absl::StatusOr<std::optional<Attached>> TryAttach(const std::shared_ptr<FollowStream>& stream,
                                                    const v1::ShardPosition& position, Wanted wanted,
                                                    const Shard& shard);
  // The follower that the stream is of. UNAVAILABLE if it has ended, or the shard has another owner, or others follow
  // it.
  absl::StatusOr<ShardFollower*> FollowerOf(const FollowStream& stream, ShardId shard)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  FollowStreams::Options OptionsOfStreams();
  std::vector<ReplicaVerifier::Asked> AskFollowers(ShardId shard, v1::FollowItem item);

  void RunReports();
  // Makes a report; false if not all of it was taken.
  bool Report(const v1::ReportSyncRequest& request);

  // Constant after construction.
  const Options options_;
  Store* const store_;
  NewestUpdates* const newest_;
  const SteadyTime time_;

  std::atomic<bool> engaged_;  // ReplicaSink::engaged.

  // Synchronise themselves.
  UnconfirmedBytes unconfirmed_;
  CopyPace pace_;
  ReplicaVerifier verifier_;  // Called without mu_: it takes that under its own lock.
  FollowStreams streams_;

  mutable Mutex mu_;
  CondVar changed_;  // Something for the thread of reports to do, or for a bootstrap to go on.
  OwnedShards shards_ ABSL_GUARDED_BY(mu_);
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  std::string report_error_ ABSL_GUARDED_BY(mu_);  // Of the last report; empty: it went well.
  Thread reports_;
};

}  // namespace lodestone::server
