// The way of a push through a ps: checked, applied by the executors of its shards, committed, acknowledged.
//
// Thread-safe once the listeners are set. Callbacks run on the calling thread or on an executor's or log's, and must be
// quick.
//
// Ownership: what a push needs is kept until it is answered; all pointers must outlive the executors and logs.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "proto/parameter_server.pb.h"
#include "server/store/push_admission.h"
#include "server/store/rate_meter.h"
#include "server/store/replica_sink.h"
#include "server/store/request_payload.h"
#include "server/wal/shard_log.h"

namespace lodestone::server {

class Catalog;
class CommitLog;
class ServingGate;
class Sessions;
class ShardSet;
class StepCloser;
struct AppliedStep;
struct PushCall;
struct PushTurn;
struct ShardPush;

class PushPath {
 public:
  PushPath(const TimeSource* time, const ServingGate* gate, ShardSet* shards, CommitLog* log, Catalog* catalog,
           Sessions* sessions, StepCloser* closer);

  // `listener` is called, on an executor's thread or a log's, once with all tables that have had their
  // broadcast.every_pushes pushes with a push, and again with those of which a message of such a push ends later than
  // the one that was counted. Call once, before the first push.
  using BroadcastListener = std::function<void(std::span<const TableId>)>;
  void SetBroadcastListener(BroadcastListener listener) { broadcast_listener_ = std::move(listener); }
  // `listener` is called with each push that is refused, on the thread that refuses it. Call once, before the first
  // push.
  using RefusalListener = std::function<void(Incarnation worker, const absl::Status& why)>;
  void SetRefusalListener(RefusalListener listener) { refusal_listener_ = std::move(listener); }

  // Applies a push. `header.payload()` is empty: the keys and gradients are in `payload`. A push is checked whole
  // before any shard sees it: it is applied to all of its shards or refused. One that a shard has applied before was
  // accepted then, and is refused by no guard and for no want of memory. With logs, `done` runs when it is durable.
  // UNAVAILABLE while a log cannot be written: what was applied already is acknowledged when the push is sent again and
  // the log is well.
  using Done = std::function<void(absl::StatusOr<v1::PushResponse>)>;
  void Push(v1::PushRequest header, RequestPayload payload, Done done);

  // Tells the broadcast listener of a step that ended without a push.
  void TellApplied(const AppliedStep& applied) const;

  // Bytes of `header`'s parts in its payload, `keys` of them keys, for splitting PushPull's. Errors are those of Push.
  absl::StatusOr<size_t> PayloadBytes(const v1::PushRequest& header, size_t* keys = nullptr) const;

  // About once a second, for the status: measures the rate.
  void SampleRate(int64_t now_ms) { rate_.Sample(now_ms, pushes_.load()); }
  // Sets what is about pushes.
  void FillStatus(v1::ServerStatus* status) const;

 private:
  static constexpr size_t kStages = 3;  // Queue, apply, commit.

  // Whether this ps is the one to judge a push, before its tables and payload are looked at: a ps that is not back yet
  // does not know them, nor does one that does not own their shards.
  absl::Status CheckTaken(const v1::PushRequest& header, int64_t now_ms) const;
  absl::Status Prepare(PushCall* call);
  // RESOURCE_EXHAUSTED if an executor that the push needs has too much to do.
  absl::Status CheckQueues(const PushCall& call) const;
  void Run(const std::shared_ptr<PushCall>& call);
  // On executor `e`: applies and commits the parts whose shards it owns, in as many turns as it takes.
  void Apply(const std::shared_ptr<PushCall>& call, size_t e);
  // The same of the first of `pushes`; returns of how many.
  size_t ApplyTurn(const std::shared_ptr<PushCall>& call, size_t e, std::span<ShardPush* const> pushes);
  // Whether a part is applied now: the shard is still here, and neither the session nor the order of steps has ended.
  absl::Status CheckApplies(const PushCall& call, const ShardPush& push, bool has_session) const;
  // Applies a part, and adds what it `commits`.
  void ApplyToShard(const PushCall& call, ShardPush* push, bool commits, std::vector<ShardLog::Record>* records,
                    std::vector<ReplicaSink::Position>* positions) const;
  // How many ends each turn has: one, or its log's and its followers'.
  size_t EndsOfATurn() const;
  // `last`: the turn that was done last; null if there is none.
  void Finish(PushCall* call, const PushTurn* last);
  void Observe(const PushCall& call, const PushTurn* last) const;
  // `late`: a broadcast was due for a push that this message is part of (Sessions::PushApplied).
  void TellDue(const PushCall& call, bool late) const;
  // Whether a broadcast is due with this step.
  bool IsBroadcast(const AppliedStep& applied) const;
  // Ends it with why it is refused.
  void RefuseCall(PushCall* call, absl::Status status);
  void Refuse(const absl::Status& status, Incarnation worker);

  // Constant after construction, or before the first push.
  const TimeSource* const time_;
  const ServingGate* const gate_;
  ShardSet* const shards_;
  CommitLog* const log_;
  Catalog* const catalog_;
  Sessions* const sessions_;
  StepCloser* const closer_;
  const PushAdmission admission_;
  BroadcastListener broadcast_listener_;
  RefusalListener refusal_listener_;

  // Synchronise themselves.
  std::atomic<uint64_t> pushes_{0};
  std::atomic<uint64_t> duplicates_{0};
  std::atomic<uint64_t> refused_{0};
  std::atomic<uint64_t> bytes_{0};
  mutable std::array<std::atomic<int64_t>, kStages> stage_ns_{};
  RateMeter rate_;

  mutable Mutex mu_;
  std::string last_refusal_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::server
