// What a Store is made of. Included by the sources that have its methods only: store.cc (tables, changes, status),
// data_path.cc (pushes and pulls), replay.cc and rollback.cc.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "server/shard/executor.h"
#include "server/shard/shard.h"
#include "server/store/request_view.h"
#include "server/store/store.h"
#include "server/store/table_catalog.h"
#include "server/store/worker_sessions.h"

namespace lodestone::server {

v1::EvictedRows ToProto(const EvictedKeys& group);

// Waits until records that were appended are durable.
class LogWait {
 public:
  explicit LogWait(size_t count) : left_(count) {}

  // For one of them. REQUIRES: this outlives the call.
  ShardLog::Done done() {
    return [this](const absl::Status& status) {
      MutexLock lock(&mu_);
      status_.Update(status);
      if (--left_ == 0) changed_.NotifyAll();
    };
  }
  // Why one of them is not, or OK.
  absl::Status Wait() {
    MutexLock lock(&mu_);
    while (left_ > 0) changed_.Wait(&mu_);
    return status_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  size_t left_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

class Store::Impl {
 public:
  explicit Impl(const Options& options)
      : options_(options),
        shards_(options.shards),
        roles_(options.shards),
        executor_of_(options.shards),
        own_terms_(options.shards),
        states_(options.shards),
        catalog_(options.seed, options.shards, options.memory_max_bytes) {
    for (uint32_t i = 0; i < std::max(1u, options.executors); ++i) {
      executors_.push_back(std::make_unique<Executor>());
    }
  }

  ~Impl() {
    executors_.clear();  // Their last messages may still hand something to the background and the logs.
    background_.reset();
    logs_.clear();  // Runs what waited to be durable.
  }

  void AdoptShards(const std::vector<ShardId>& shards);
  absl::Status AddTable(const v1::TableSpec& spec);
  void UseShard(ShardId shard, const std::function<void(Shard*)>& use);
  absl::StatusOr<bool> Replay(const v1::LogRecord& record, ByteView payload);
  void RestoreSessions(std::span<const Incarnation> open, Incarnation forgotten_max);
  void Serve(std::vector<std::unique_ptr<ShardLog>> logs);
  absl::StatusOr<Version> RollBack(ShardId shard, std::shared_ptr<const TablePart> part);
  // Before it serves nobody knows; no push is taken then.
  bool ReadsAfterAnswers() const { return !ready_.load(std::memory_order_acquire) || HasHearers(); }
  size_t executors() const { return executors_.size(); }
  std::vector<ShardId> adopted_shards() const { return roles_.AtLeast(ShardRole::kFollowing); }
  std::vector<ShardId> held_shards() const { return roles_.AtLeast(ShardRole::kFollows); }
  ShardRole RoleOf(ShardId shard) const { return roles_.Of(shard); }
  void SetReplicas(ReplicaSink* sink, std::function<absl::Status()> may_serve);
  void SetTerms(const std::vector<uint64_t>& terms) { own_terms_ = terms; }
  uint64_t OwnTermOf(ShardId shard) const { return own_terms_[shard]; }
  absl::Status Follow(ShardId shard);
  void ClearState(ShardId shard);
  absl::Status TakeState(ShardId shard, const v1::CheckpointRecord& record, std::span<const uint8_t> payload);
  absl::Status FinishState(ShardId shard, Version version, uint64_t term);
  uint64_t StatesOf(ShardId shard) const { return states_[shard].load(std::memory_order_acquire); }
  absl::Status ReplayFollowed(const v1::LogRecord& record, const Payload& payload);
  void KnowSessions(std::span<const Incarnation> open, Incarnation forgotten_max);
  void Own(ShardId shard, uint64_t term);
  void Disown(ShardId shard);
  std::vector<v1::TableSpec> table_specs() const;
  Sessions::Known sessions() const { return sessions_.known(); }
  std::vector<uint64_t> RollLogs();
  void DropLogsBefore(std::span<const uint64_t> marks);
  absl::Status CheckLogs() const;
  absl::Status CheckOwnLogs() const;
  void FillLogStatus(v1::StorageStatus* status) const;
  absl::StatusOr<v1::EnsureTablesResponse> EnsureTables(const v1::EnsureTablesRequest& request);
  absl::StatusOr<size_t> PushPayloadBytes(const v1::PushRequest& header, size_t* keys = nullptr) const;
  void Push(v1::PushRequest header, Numbers numbers, PushDone done);
  void Pull(v1::PullRequest header, Numbers numbers, PullDone done);
  absl::StatusOr<Subscription> MakeSubscription(const v1::SubscribeRequest& request) const;
  void CollectChange(ShardId shard, const Subscription& subscription, std::optional<Held> from,
                     std::function<void(ShardChange)> done);
  std::vector<ShardId> owned_shards() const;
  Version VersionOf(ShardId shard) const { return shards_[shard]->version(); }
  std::optional<v1::Broadcast> BroadcastOf(TableId table) const;
  absl::StatusOr<std::string> TableName(TableId table) const;
  // What a call ends with that needs it.
  absl::Status UnknownTable(TableId table) const;
  std::pair<uint64_t, uint64_t> Totals() const;
  void SetBroadcastListener(std::function<void(TableId)> listener) { broadcast_listener_ = std::move(listener); }
  void SetRefusalListener(std::function<void(Incarnation, const absl::Status&)> listener) {
    refusal_listener_ = std::move(listener);
  }
  void Drain();
  void Tick();
  void FillStatus(v1::StatusResponse* status) const;

 private:
  // One shard's share of a push.
  struct ShardPush {
    Shard* shard = nullptr;
    std::vector<Shard::PushPart> parts;
    std::vector<int> part_indices;  // In the push's header, beside `parts`.
    absl::StatusOr<Shard::PushResult> result = Shard::PushResult{};
  };
  // What became of the share of a push that one executor has.
  struct PushShare {
    absl::Status log;        // Whether what it applied is durable,
    absl::Status replica;    // and whether followers hold it.
    int64_t taken_ns = 0;    // When the executor took it,
    int64_t applied_ns = 0;  // and when that was done.
  };
  // A push on its way through the executors; whoever finishes last answers.
  struct PushCall {
    int64_t arrived_ns = 0;
    int64_t now_ms = 0;
    v1::PushRequest header;
    Numbers numbers;
    std::vector<PartView> views;
    std::vector<ShardPush> shards;
    std::vector<Table*> tables;        // Distinct.
    std::vector<PushShare> shares;     // By executor.
    std::atomic<size_t> ends_left{0};  // Of executors, their logs and followers.
    PushDone done;
  };
  // Rows of adjacent parts in a pull's answer.
  struct RowRun {
    size_t slice = 0;  // Of the payload.
    uint64_t at = 0;   // In the buffer of rows, in floats; they go on until the next run.
  };
  struct PullCall {
    int64_t arrived_ns = 0;
    int64_t now_ms = 0;
    v1::PullRequest header;
    Numbers numbers;
    std::vector<PartView> views;
    Values values;
    // The rows of all parts lie in one buffer, which is made when the first is read, not while the message waits.
    std::once_flag rows_once;
    BufferRef rows;
    uint64_t row_values = 0;                     // Floats in it.
    std::vector<uint64_t> rows_at;               // By part: where its rows begin.
    std::vector<RowRun> row_runs;                // Ascending.
    std::vector<std::vector<size_t>> row_parts;  // By executor: indices of parts.
    std::atomic<size_t> executors_left{0};
    PullDone done;
  };

  std::shared_ptr<const TableMap> tables() const { return catalog_.tables(); }
  size_t ExecutorOf(ShardId shard) const { return executor_of_[shard]; }
  absl::Status CheckReady() const {
    if (ready_.load(std::memory_order_acquire)) return absl::OkStatus();
    return absl::UnavailableError("this ps owns no shards yet: it waits for the other servers of the cluster");
  }
  // OK if this ps may answer for its shards now.
  absl::Status CheckServing() const { return may_serve_ ? may_serve_() : absl::OkStatus(); }
  // Who hears of an update that was applied.
  ShardLog* LogOf(size_t executor) const { return logs_.empty() ? nullptr : logs_[executor].get(); }
  bool HasHearers() const { return !logs_.empty() || replicas_ != nullptr; }
  // Fills in what every record of the update says that the shard has just applied. On its executor.
  void Stamp(Shard* shard, uint64_t now_ms, std::span<ShardLog::Record> records);
  // Logs an update that nobody waits for, and hands it to followers. On the shard's executor.
  void Tell(Shard* shard, uint64_t now_ms, std::vector<ShardLog::Record> records);
  // RESOURCE_EXHAUSTED if an executor has too much to do.
  absl::Status CheckQueues() const;
  // Appends `record`, which is no shard's, to the logs `first` and on, and waits until it is durable.
  absl::Status LogForAll(const v1::LogRecord& record, size_t first, size_t count);
  absl::StatusOr<std::shared_ptr<const TableEntry>> EnsureTable(const v1::TableSpec& spec);
  absl::Status AddToShards(TableEntry* entry);
  void Sweep(ShardId shard, const std::vector<Incarnation>& forgotten, int64_t now_ms);
  // Whether a record is to be applied: not if the shard is not here, or has it. DATA_LOSS if it does not follow on what
  // the shard holds.
  absl::StatusOr<bool> IsNext(const v1::LogRecord& record) const;
  // Applies an update that is; false if more pieces of it must follow.
  absl::StatusOr<bool> ReplayUpdate(const v1::LogRecord& record, ByteView payload);
  absl::Status ReplayPush(const v1::LogRecord& record, ByteView payload);
  // False if more pieces must follow.
  absl::StatusOr<bool> ReplayRestored(const v1::LogRecord& record, ByteView payload);
  absl::Status PreparePush(PushCall* call);
  void RunPush(const std::shared_ptr<PushCall>& call);
  // On executor `e`: applies what `pushes` want of its shards, and logs it.
  void ApplyPushes(const std::shared_ptr<PushCall>& call, size_t e, std::span<ShardPush* const> pushes);
  // `last`: the share that was done last; null if nobody had one.
  void FinishPush(PushCall* call, const PushShare* last);
  void ObservePush(const PushCall& call, const PushShare* last) const;
  void Refuse(const absl::Status& status, Incarnation worker);
  void RunPull(const std::shared_ptr<PullCall>& call);
  // On executor `e`: reads the rows that it has of them.
  void ReadRows(PullCall* call, size_t e);
  // `taken_ns`: when the executor that was done last took its share; 0 if none had one.
  void FinishPull(PullCall* call, int64_t taken_ns);

  // Constant after construction.
  const Options options_;
  std::function<void(TableId)> broadcast_listener_;
  std::function<void(Incarnation, const absl::Status&)> refusal_listener_;

  // Constant once ready_. Executors still append when they end, so the logs outlive them.
  std::vector<std::unique_ptr<ShardLog>> logs_;  // By executor; empty: none.
  ReplicaSink* replicas_ = nullptr;              // Null: shards have no followers.
  std::function<absl::Status()> may_serve_;      // Empty: always.
  std::atomic<bool> ready_{false};

  // By id; made before the shard gets a role, and never gone after that. Each is owned by its executor.
  std::vector<std::unique_ptr<Shard>> shards_;
  ShardRoles roles_;
  std::vector<size_t> executor_of_;
  std::vector<uint64_t> own_terms_;            // Of updates made here. Owned by the executors.
  std::vector<std::atomic<uint64_t>> states_;  // See StatesOf.
  Mutex adopt_mu_;                             // Held while shards or tables are made: each shard has all tables.
  size_t adopted_ ABSL_GUARDED_BY(adopt_mu_) = 0;

  // Synchronise themselves.
  std::vector<std::unique_ptr<Executor>> executors_;
  std::unique_ptr<Executor> background_ = std::make_unique<Executor>(Executor::Mode::kThread);
  Catalog catalog_;
  Sessions sessions_;
  std::atomic<uint64_t> pushes_{0};
  std::atomic<uint64_t> pushes_duplicate_{0};
  std::atomic<uint64_t> pushes_refused_{0};
  std::atomic<uint64_t> pulls_{0};
  std::atomic<uint64_t> push_bytes_{0};
  std::atomic<uint64_t> pull_bytes_{0};

  // What a tick saw.
  struct RateSample {
    int64_t now_ms = 0;
    uint64_t pushes = 0;
    uint64_t pulls = 0;
  };
  mutable Mutex status_mu_;
  std::deque<RateSample> rate_samples_ ABSL_GUARDED_BY(status_mu_);
  std::string last_refusal_ ABSL_GUARDED_BY(status_mu_);
};

}  // namespace lodestone::server
