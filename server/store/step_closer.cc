#include "server/store/step_closer.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "common/base/status.h"
#include "server/shard/shard.h"
#include "server/shard/shard_steps.h"
#include "server/store/catalog.h"
#include "server/store/commit_log.h"
#include "server/store/logged_evictions.h"
#include "server/store/serving_gate.h"
#include "server/store/shard_set.h"
#include "server/store/step_waits.h"
#include "server/store/table_entry.h"

namespace lodestone::server {

StepCloser::StepCloser(const TimeSource* time, OnDemandTimer* timer, const ServingGate* gate, ShardSet* shards,
                       CommitLog* log, const Catalog* catalog, StepWaits* waits)
    : time_(time),
      timer_(timer),
      gate_(gate),
      shards_(shards),
      log_(log),
      catalog_(catalog),
      waits_(waits),
      scheduled_ms_(shards->size(), 0) {}

absl::Status StepCloser::CheckWritable() const {
  if (stopped_.load()) return absl::UnavailableError("this ps ends");
  LODESTONE_RETURN_IF_ERROR(gate_->CheckServing());
  return log_->health();
}

void StepCloser::Contributed(const Shard& shard) {
  waits_->Tell(shard);
  Schedule(shard);
}

absl::Status StepCloser::Release(Shard* shard, TableId table, uint64_t steps, bool served) {
  for (;;) {
    const StepCollector* const collector = shard->steps().Of(table);
    if (collector == nullptr || collector->steps() >= steps || !collector->complete()) return absl::OkStatus();
    LODESTONE_RETURN_IF_ERROR(served ? CheckWritable() : absl::OkStatus());
    Close(shard, table, static_cast<uint64_t>(time_->NowMs()));
  }
}

absl::Status StepCloser::EndSteps(Shard* shard, TableId table, bool served) {
  for (;;) {
    const StepCollector* const collector = shard->steps().Of(table);
    if (collector == nullptr || !(collector->may_close() || collector->may_end())) return absl::OkStatus();
    LODESTONE_RETURN_IF_ERROR(served ? CheckWritable() : absl::OkStatus());
    Close(shard, table, static_cast<uint64_t>(time_->NowMs()), /*ends_steps=*/true);
  }
}

void StepCloser::Close(Shard* shard, TableId table, uint64_t now_ms, bool ends_steps) {
  Evictions evictions;
  const uint64_t step = shard->CloseStep(table, now_ms, &evictions);
  if (log_->HasLogOrFollowers()) {
    std::vector<ShardLog::Record> records(1);
    v1::ClosedStep& closed = *records[0].message.mutable_closed();
    closed.set_table(table);
    closed.set_step(step);
    closed.set_ends_steps(ends_steps);
    for (const EvictedKeys& group : evictions.groups()) *closed.add_evicted() = ToProto(group);
    log_->AppendUnawaited(shard, now_ms, std::move(records));
  } else {
    log_->BeginTerm(shard);
  }
  waits_->Tell(*shard);
  if (listener_) listener_({table, step});
}

void StepCloser::CloseDue(ShardId id) {
  scheduled_ms_[id] = 0;
  if (!shards_->Owns(id) || !CheckWritable().ok()) return;  // Tick looks again.
  Shard* const shard = shards_->Get(id);
  const auto now_ms = static_cast<uint64_t>(time_->NowMs());
  for (std::vector<TableId> due = shard->steps().Due(now_ms); !due.empty(); due = shard->steps().Due(now_ms)) {
    for (const TableId table : due) Close(shard, table, now_ms);
  }
  Schedule(*shard);
}

void StepCloser::Schedule(const Shard& shard) {
  const std::optional<uint64_t> due_ms = shard.steps().NextDueMs();
  uint64_t& scheduled_ms = scheduled_ms_[shard.id()];
  if (!due_ms.has_value() || (scheduled_ms > 0 && scheduled_ms <= *due_ms)) return;
  scheduled_ms = *due_ms;
  const int64_t left_ms = std::max<int64_t>(0, static_cast<int64_t>(*due_ms) - time_->NowMs());
  timer_->After(left_ms, [this, id = shard.id()] {
    shards_->executors()[shards_->ExecutorOf(id)].Submit([this, id] { CloseDue(id); });
  });
}

void StepCloser::Tick() {
  if (!gate_->open() || stopped_.load()) return;
  if (const absl::Status serves = gate_->CheckServing(); !serves.ok()) waits_->Fail(serves);
  const std::shared_ptr<const TableMap> map = catalog_->tables();
  bool any = false;
  for (const auto& [id, entry] : *map) any |= entry->table->counters().contributions_pending.load() > 0;
  if (!any) return;
  for (const ShardId shard : shards_->owned()) {
    shards_->executors()[shards_->ExecutorOf(shard)].Submit([this, shard] { CloseDue(shard); });
  }
}

}  // namespace lodestone::server
