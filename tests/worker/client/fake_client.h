// A cluster in one process, for tests: a Client that keeps the tables itself and applies pushes at once, with the real
// optimizers. Callbacks run on the calling thread, before the call returns.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "server/optimizer/optimizer.h"
#include "worker/client/client.h"
#include "worker/training/aligned_vector.h"

namespace lodestone::worker {

class FakeClient final : public Client {
 public:
  explicit FakeClient(uint32_t shards = 8, uint32_t index = 0);

  // Broadcasts after every this many pushes; 0: only when Broadcast is called.
  void BroadcastEvery(uint64_t pushes);
  void Broadcast();
  // AwaitClock finds these workers' samples untrained, and calls `at` first (may be null), which may call this object.
  // It has waited if it is to stop by then.
  void OnAwaitClock(std::vector<std::string> untrained, std::function<void()> at = nullptr);
  // What the coordinator answers to AskClock (null: that no other worker trains), and the clocks that it is told of.
  void OnAskClock(std::function<absl::StatusOr<v1::AwaitClockResponse>(const v1::AwaitClockRequest&)> answer,
                  std::function<void(Clock)> told = nullptr);
  // What the coordinator answers to Validate (null: it gives no validation away), and whether it ends training early.
  void OnValidate(std::function<absl::StatusOr<v1::ValidateResponse>(const v1::ValidateRequest&)> answer);
  void StopEarly();
  // What the coordinator answers to LeaseRanges; null: that the run is over.
  void OnLeaseRanges(std::function<absl::StatusOr<v1::LeaseRangesResponse>(const v1::LeaseRangesRequest&)> answer);
  // An operator has given a table another consistency.
  void ChangeConsistency(const std::string& table, const v1::Consistency& consistency);
  // Someone else's push: the versions of all shards with dense values grow, and so does the first value of the first
  // table.
  void PushByAnother();
  // All further pushes, pulls, health checks or creations of tables end with this.
  void FailPushes(absl::Status status);
  void FailPulls(absl::Status status);
  void FailHealth(absl::Status status);
  // Or only the next creation, after which `then` is called.
  void FailTables(absl::Status status, std::function<void()> then = nullptr);

  uint64_t pushes() const;
  uint64_t push_pulls() const;  // Those of the pushes that a pull went with.
  size_t subscriptions() const;
  uint64_t dense_pulls() const;
  uint64_t row_pulls() const;
  std::vector<v1::WorkerProgress> reports() const;
  std::vector<Clock> clocks() const;  // Of the pushes that were applied.
  // Of those of ranges: the range's incarnation and the place in it.
  std::vector<std::pair<Incarnation, Sequence>> range_steps() const;
  // Of those that were contributions to steps. A step is so many of them; they are applied at once.
  std::vector<v1::Contribution> contributions() const;
  void SetStepBatches(uint64_t batches);
  std::vector<StepRead> step_reads() const;  // As PullSteps got them.
  std::vector<Clock> awaited() const;
  std::vector<v1::ValidateRequest> validations() const;                  // As Validate got them.
  std::vector<std::pair<std::string, std::string>> checkpoints() const;  // Written, and what each removed.
  // What FollowOrders had been told when the tables were described, each time; 0: nothing.
  std::vector<uint64_t> described_after_orders() const;
  // What a second server says of the tables, instead of the same.
  void SetOtherServer(std::vector<v1::TableSpec> tables);
  std::vector<size_t> pushes_in_flight_max() const;  // As SetPushesInFlightMax was told, one after the other.
  // A table's current values: dense elements, or the row of `key`.
  std::vector<float> DenseValues(const std::string& table) const;
  std::vector<float> RowValues(const std::string& table, Key key) const;
  // The current version of a shard.
  Version VersionOf(ShardId shard) const;

  uint32_t index() const override { return index_; }
  Incarnation incarnation() const override { return 1; }
  std::shared_ptr<const ShardMap> shard_map() const override { return shard_map_; }
  absl::StatusOr<std::vector<TableHandle>> EnsureTables(const std::vector<v1::TableSpec>& specs) override;
  absl::StatusOr<std::vector<v1::TableSpec>> DescribeTables(const std::vector<std::string>& names) override;
  absl::StatusOr<std::vector<std::vector<v1::TableSpec>>> DescribeByServer(
      const std::vector<std::string>& names) override;
  absl::Status Push(const StepOrigin& step, std::span<const DenseGradient> dense, std::span<const RowGradients> rows,
                    const ReadVersions& read_versions, std::function<void(PushResult)> done) override;
  void Pull(std::vector<DensePull> dense, std::vector<RowPull> rows,
            std::function<void(absl::Status, ShardVersions)> done) override;
  void PullSteps(const StepRead& read, std::vector<DensePull> dense, std::vector<RowPull> rows,
                 std::function<void(absl::Status, ShardVersions, uint64_t)> done) override;
  absl::StatusOr<ShardVersions> PullNow(std::vector<DensePull> dense, std::vector<RowPull> rows) override;
  absl::Status PushPull(const StepOrigin& step, std::span<const DenseGradient> dense,
                        std::span<const RowGradients> rows, const ReadVersions& read_versions,
                        std::vector<DensePull> dense_pulls, std::vector<RowPull> row_pulls,
                        std::function<void(PushResult, ShardVersions)> done) override;
  // Of dense tables. on_anchor is not called.
  absl::StatusOr<SubscriptionId> Subscribe(std::vector<const TableHandle*> tables,
                                           SubscriptionListener listener) override;
  void Unsubscribe(SubscriptionId subscription) override;
  void UnsubscribeAll() override;
  absl::Status Flush() override { return absl::OkStatus(); }
  absl::Status FollowOrders(uint64_t orders) override;
  void SetPushesInFlightMax(size_t pushes) override;
  uint64_t SettingsChanges() const override;
  void ReportProgress(const v1::WorkerProgress& progress) override;
  absl::StatusOr<std::vector<std::string>> AwaitClock(Clock clock, const std::function<bool()>& stops) override;
  absl::StatusOr<v1::AwaitClockResponse> AskClock(v1::AwaitClockRequest request) override;
  void ReportClock(Clock clock) override;
  absl::StatusOr<v1::ValidateResponse> Validate(v1::ValidateRequest request) override;
  absl::StatusOr<v1::LeaseRangesResponse> LeaseRanges(v1::LeaseRangesRequest request) override;
  RangeSession OpenRange(Incarnation range) override { return {range, nullptr}; }
  bool StopsEarly() const override;
  bool PauseAnnounced() const override { return announce_pause; }
  std::atomic<bool> announce_pause{false};
  absl::Status WriteCheckpoint(const std::string& name, const std::string& removes) override;
  absl::Status Health() const override;

 private:
  // Values and the optimizer's state of a dense table or a row.
  struct Vector {
    std::vector<float> values;
    std::vector<float> state;
  };
  struct Table {
    TableHandle handle;
    std::unique_ptr<const server::Optimizer> optimizer;
    Vector dense;
    std::map<Key, Vector> rows;
    std::vector<Version> block_versions;
  };
  struct Subscription {
    SubscriptionId id = 0;
    std::vector<TableId> tables;
    std::function<void(const BlockUpdate&)> on_block;
    std::function<void(ShardId, Version)> on_shard;
    std::vector<Version> sent;  // By shard.
  };

  absl::Status TakeTablesStatus();
  Vector Fresh(const Table& table, Key key, size_t n, uint64_t fan_in, uint64_t fan_out) const;
  void Apply(const Table& table, const float* gradient, Vector* vector) const;
  void PushLocked(std::span<const DenseGradient> dense, std::span<const RowGradients> rows, std::vector<bool>* touched)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status PullLocked(const std::vector<DensePull>& dense, const std::vector<RowPull>& rows,
                          ShardVersions* versions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds the delay of a push of `table` that touches `shards`, all of it as own.
  void MeasureLocked(const TableHandle* table, std::vector<ShardId> shards, const ShardVersions& read,
                     PushResult* result) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends what changed since it was sent last; all of it with `anchor`.
  void SendLocked(bool anchor, Subscription* subscription) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BroadcastLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint32_t shards_;
  const uint32_t index_;
  std::shared_ptr<const ShardMap> shard_map_;

  mutable Mutex mu_;
  std::map<TableId, Table> tables_ ABSL_GUARDED_BY(mu_);
  ShardVersions versions_ ABSL_GUARDED_BY(mu_);
  std::vector<Subscription> subscriptions_ ABSL_GUARDED_BY(mu_);
  SubscriptionId last_subscription_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t broadcast_every_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t pushes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t push_pulls_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t settings_changes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t dense_pulls_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t row_pulls_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t orders_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint64_t> described_after_orders_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::TableSpec> other_server_ ABSL_GUARDED_BY(mu_);
  absl::Status tables_status_ ABSL_GUARDED_BY(mu_);
  std::function<void()> after_failed_tables_ ABSL_GUARDED_BY(mu_);
  std::vector<size_t> pushes_in_flight_max_ ABSL_GUARDED_BY(mu_);
  absl::Status push_error_ ABSL_GUARDED_BY(mu_);
  absl::Status pull_error_ ABSL_GUARDED_BY(mu_);
  absl::Status health_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::WorkerProgress> reports_ ABSL_GUARDED_BY(mu_);
  std::vector<Clock> clocks_ ABSL_GUARDED_BY(mu_);
  std::vector<v1::Contribution> contributions_ ABSL_GUARDED_BY(mu_);
  uint64_t step_batches_ ABSL_GUARDED_BY(mu_) = 1;
  std::vector<StepRead> step_reads_ ABSL_GUARDED_BY(mu_);
  std::vector<Clock> awaited_ ABSL_GUARDED_BY(mu_);
  std::function<absl::StatusOr<v1::AwaitClockResponse>(const v1::AwaitClockRequest&)> ask_clock_ ABSL_GUARDED_BY(mu_);
  std::function<void(Clock)> told_clock_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> untrained_ ABSL_GUARDED_BY(mu_);
  std::function<void()> at_await_ ABSL_GUARDED_BY(mu_);
  std::function<absl::StatusOr<v1::ValidateResponse>(const v1::ValidateRequest&)> validate_ ABSL_GUARDED_BY(mu_);
  std::function<absl::StatusOr<v1::LeaseRangesResponse>(const v1::LeaseRangesRequest&)> lease_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<Incarnation, Sequence>> range_steps_ ABSL_GUARDED_BY(mu_);
  bool stops_early_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<v1::ValidateRequest> validations_ ABSL_GUARDED_BY(mu_);
  std::vector<std::pair<std::string, std::string>> checkpoints_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::worker
