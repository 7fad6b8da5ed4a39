// The owner's side of replication: sends the updates of the shards that this ps owns to who follows them, and knows
// which of them a follower holds.
//
// A shard is alone, or has a follower that counts (is in sync): then an update may be acknowledged only once that
// follower has confirmed it, because the coordinator may make it the owner at any moment. A follower comes to count in
// this order: it has got the shard's state and all updates since; from then on acknowledgements wait for it; it has
// confirmed all that was acknowledged before; the coordinator is told, and has it saved. It ceases to count in the
// opposite one: a follower that does not confirm for `patience_ms`, or is gone for so long, still holds up
// acknowledgements until the coordinator has it saved that it counts no more. An owner that was replaced meanwhile is
// told so instead, and acknowledges nothing ever.
//
// Thread-safe. The store must outlive it; it must outlive the gRPC server that its streams are of, and all calls of the
// store's.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "common/wire/shard_map.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/replication.grpc.pb.h"
#include "server/auth/access.h"
#include "server/replication/follow_stream.h"
#include "server/shard/shard.h"
#include "server/store/replica_sink.h"
#include "server/store/store.h"

namespace lodestone::server {

class Replicator final : public ReplicaSink {
 public:
  struct Options {
    std::string cluster;
    uint32_t shards = 1;
    uint64_t seed = 1;
    uint32_t server = 0;  // This ps's index.
    int64_t patience_ms = 2500;
    int64_t stalled_ms_max = 10'000;  // A stream that takes nothing for so long, or never starts, is cut off.
    uint64_t queue_bytes_max = limits::kFollowQueueBytesMax;
    // Coordinator.ReportSync; may block, called on a thread of its own.
    std::function<absl::StatusOr<v1::ReportSyncResponse>(const v1::ReportSyncRequest&)> report;
    std::function<void()> ask_route;          // The shard map seems to be old.
    std::function<absl::Status()> may_serve;  // Not OK: the lease has ended, and nothing can be acknowledged.
    Access* access = nullptr;                 // Who may follow; null: everybody.
  };
  Replicator(Options options, Store* store);
  ~Replicator() override;

  // This ps owns the shard from now on (before the store takes updates for it), or not any more (after it took the last
  // one): whoever waits gets ABORTED.
  void Own(ShardId shard);
  void Disown(ShardId shard);
  // A newer map than those before.
  void SetMap(const ShardMap& map);

  // ReplicaSink.
  void Append(std::span<const ShardLog::Record> records, const std::shared_ptr<const void>& keep) override;
  void Await(std::span<const Position> positions, Done done) override;
  absl::Status health() const override;

  // Replication.Follow.
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Open(grpc::CallbackServerContext* context);
  // For streams. After an error of these the stream is to end with it.
  absl::Status OnStart(const std::shared_ptr<FollowStream>& stream, const v1::FollowStart& start);
  absl::Status OnAcks(FollowStream* stream, const v1::FollowAcks& acks);
  void OnClosed(FollowStream* stream);

  // Admin.VerifyReplicas.
  absl::StatusOr<v1::VerifyReplicasResponse> Verify();

  // Nothing is acknowledged any more, whoever waits gets UNAVAILABLE, and all streams end. One thread calls it.
  void Shutdown();

  // Sets the fields of replication that are about owned shards, and adds the waits.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  enum class Sync {
    kAlone,    // Nobody else holds it, as far as the coordinator may know.
    kJoining,  // A follower has its state; acknowledgements wait for it. The coordinator may know already.
    kInSync,   // The coordinator knows.
    kLeaving,  // The follower is to count no more; the coordinator may not know yet.
  };
  // Somebody who waits for one shard or several.
  struct Waiter {
    std::atomic<size_t> left{1};
    Mutex mu;
    absl::Status status ABSL_GUARDED_BY(mu);
    Done done;
  };
  using WaiterRef = std::shared_ptr<Waiter>;
  struct Wait {
    Version version = 0;
    int64_t since_ms = 0;
    WaiterRef waiter;
  };
  struct OwnedShard {
    bool owned = false;
    Sync sync = Sync::kAlone;
    std::shared_ptr<FollowStream> stream;  // Who gets its updates; null: nobody.
    bool sending_state = false;            // Updates wait until the state is sent.
    uint32_t server = 0;                   // Of the follower, also of one that is gone,
    Incarnation follower = 0;              // and its incarnation.
    Version appended = 0;
    Version confirmed = 0;                   // By this follower; 0: nothing.
    Version mark = 0;                        // kJoining: what it must confirm before it counts.
    bool told = false;                       // The coordinator was, or is just being, told that it counts.
    bool reporting = false;                  // A report is under way.
    uint64_t in_sync_epoch = 0;              // The map's, when the coordinator took that it counts.
    int64_t lost_since_ms = 0;               // The stream is gone; 0: it is not.
    std::deque<FollowPieceRef> unconfirmed;  // Updates, while there is a stream or a follower counts.
    uint64_t unconfirmed_bytes = 0;
    std::deque<Wait> waits;
  };
  // Who is to be told what, once no lock is held.
  struct Telling {
    std::vector<std::pair<WaiterRef, absl::Status>> list;
    Telling() = default;
    Telling(const Telling&) = delete;
    Telling& operator=(const Telling&) = delete;
    ~Telling() { Run(); }
    void Run();
  };
  struct Bootstrap {
    std::thread thread;
    std::atomic<bool> done{false};
  };
  struct Question {
    std::optional<uint64_t> answer;
    bool lost = false;
    const FollowStream* stream = nullptr;
  };

  static void Settle(const WaiterRef& waiter, const absl::Status& status);

  void RunReports();
  // Makes a report; false if not all of it was taken.
  bool Report(const v1::ReportSyncRequest& request);
  bool CollectReports(v1::ReportSyncRequest* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeOutcome(const v1::ReportSyncRequest::Report& report, bool accepted, uint64_t epoch, Telling* telling)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Follows up on what time brings: impatience, a lease that has ended, followers that lag without end.
  void CheckTime(Telling* telling) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsHopeless(const OwnedShard& owned) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Leave(OwnedShard* owned, const char* why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogLeaving() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Release(OwnedShard* owned, Telling* telling) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fail(OwnedShard* owned, const absl::Status& status, Telling* telling) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Its follower has applied all up to `version`.
  void Confirm(OwnedShard* owned, Version version, Telling* telling) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Detach(OwnedShard* owned) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropUnconfirmed(OwnedShard* owned, Version up_to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  void RunBootstrap(const std::shared_ptr<FollowStream>& stream, const v1::FollowStart& start);
  // Begins to send a shard's updates: those after `position` if that is known to be the shard's past; otherwise `state`
  // is what is to be sent first.
  absl::Status Attach(const std::shared_ptr<FollowStream>& stream, const v1::ShardPosition& position,
                      std::optional<Shard::State>* state);
  // The same, now; false if the follower before counts still. On the shard's executor.
  absl::StatusOr<bool> TryAttach(const std::shared_ptr<FollowStream>& stream, const v1::ShardPosition& position,
                                 const Shard& shard, std::optional<Shard::State>* state);
  absl::Status SendState(const std::shared_ptr<FollowStream>& stream, const Shard::State& state);
  // Compares one shard.
  v1::VerifyReplicasResponse::ShardReplicas VerifyShard(ShardId shard);

  const Options options_;
  Store* const store_;
  const SteadyTime time_;

  mutable Mutex mu_;
  CondVar changed_;  // Something for the thread of reports to do, or for a bootstrap to go on.
  std::vector<OwnedShard> shards_ ABSL_GUARDED_BY(mu_);  // By id.
  std::vector<std::shared_ptr<FollowStream>> streams_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Bootstrap>> bootstraps_ ABSL_GUARDED_BY(mu_);
  std::map<uint64_t, Question> questions_ ABSL_GUARDED_BY(mu_);  // Checksums asked for, by id.
  uint64_t next_question_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<std::pair<uint32_t, const char*>, size_t> leaving_ ABSL_GUARDED_BY(mu_);  // To be logged: shards.
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  std::string report_error_ ABSL_GUARDED_BY(mu_);  // Of the last report; empty: it went well.
  std::atomic<uint64_t> unconfirmed_bytes_{0};
  std::thread reports_;
};

}  // namespace lodestone::server
