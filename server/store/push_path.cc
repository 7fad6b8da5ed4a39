#include "server/store/push_path.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/telemetry/metrics.h"
#include "server/shard/part_view.h"
#include "server/shard/shard.h"
#include "server/shard/spread.h"
#include "server/store/commit_log.h"
#include "server/store/logged_evictions.h"
#include "server/store/request_view.h"
#include "server/store/serving_gate.h"
#include "server/store/shard_set.h"
#include "server/store/table_catalog.h"
#include "server/store/worker_sessions.h"

namespace lodestone::server {
namespace {

HistogramMetric push_duration_metric("lodestone_ps_push_duration_seconds",
                                     "From a push's arrival to its acknowledgement; refused ones do not count.");
constexpr char kPushStage[] = "lodestone_ps_push_stage_duration_seconds";
constexpr char kPushStages[] =
    "What a push's time went by, in the share of it that was done last: queue, until the executor took it; apply; "
    "commit, until log and follower had it.";
HistogramMetric push_queue_metric(kPushStage, kPushStages, {{"stage", "queue"}});
HistogramMetric push_apply_metric(kPushStage, kPushStages, {{"stage", "apply"}});
HistogramMetric push_commit_metric(kPushStage, kPushStages, {{"stage", "commit"}});

// The log record of one shard's share of a push: `parts` of `header`.
ShardLog::Record RecordOf(const v1::PushRequest& header, std::span<const PartView> parts, const Evictions& evictions) {
  ShardLog::Record record;
  v1::LoggedPush& push = *record.message.mutable_push();
  push.set_worker(header.worker_incarnation());
  push.set_sequence(header.sequence());
  for (const PartView& part : parts) {
    *push.add_parts() = header.parts(part.index);
    if (!part.keys.empty()) record.payload.push_back(part.keys);
    record.payload.push_back(part.gradients);
  }
  for (const EvictedKeys& group : evictions.groups()) *push.add_evicted() = ToProto(group);
  return record;
}

}  // namespace

// One shard's share of a push.
struct PushPath::ShardPush {
  Shard* shard = nullptr;
  std::vector<PartView> parts;
  absl::StatusOr<Shard::PushResult> result = Shard::PushResult{};
};

// The outcome of the share of a push that one executor has.
struct PushPath::ExecutorShare {
  absl::Status log;        // Whether what it applied is durable,
  absl::Status replica;    // and whether followers hold it.
  int64_t taken_ns = 0;    // When the executor took it,
  int64_t applied_ns = 0;  // and when that was done.
};

// A push on its way through the executors; the share that ends last answers it.
struct PushPath::Call {
  int64_t arrived_ns = 0;
  int64_t now_ms = 0;
  v1::PushRequest header;
  RequestPayload payload;
  std::vector<ShardPush> shards;
  std::vector<Table*> tables;         // Distinct.
  std::vector<Table*> counted;        // Of them, those of which no later message of the push has more.
  std::vector<ExecutorShare> shares;  // By executor.
  std::atomic<size_t> ends_left{0};   // Of executors, their logs and followers.
  Done done;
};

absl::StatusOr<size_t> PushPath::PayloadBytes(const v1::PushRequest& header, size_t* keys) const {
  return PushPayloadBytes(header.parts(), *catalog_->tables(), keys);
}

void PushPath::Push(v1::PushRequest header, RequestPayload payload, Done done) {
  auto call = std::make_shared<Call>();
  call->arrived_ns = NowNs();
  call->now_ms = time_->NowMs();
  call->header = std::move(header);
  call->payload = std::move(payload);
  call->done = std::move(done);
  if (absl::Status status = Prepare(call.get()); !status.ok()) {
    Refuse(status, call->header.worker_incarnation());
    call->done(std::move(status));
    return;
  }
  bytes_.fetch_add(call->payload.size(), std::memory_order_relaxed);
  Run(call);
}

absl::Status PushPath::Prepare(Call* call) {
  LODESTONE_RETURN_IF_ERROR(gate_->CheckReady());
  LODESTONE_RETURN_IF_ERROR(gate_->CheckServing());
  const v1::PushRequest& header = call->header;
  // Before anything else is judged, which is for the shard's owner to do.
  for (const v1::Part& part : header.parts()) {
    if (part.shard() < shards_->size() && !shards_->Owns(part.shard())) return NotOwned(part.shard());
  }
  LODESTONE_RETURN_IF_ERROR(
      sessions_->Push(header.worker_incarnation(), header.sequence(), header.clock(), call->now_ms));
  LODESTONE_RETURN_IF_ERROR(shards_->executors().CheckQueues());
  LODESTONE_RETURN_IF_ERROR(log_->health());
  const std::shared_ptr<const TableMap> map = catalog_->tables();
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<PartView> views,
                             ViewParts(PartKind::kPush, header.parts(), call->payload.payload.bytes(),
                                       call->payload.key_bytes(), *map, shards_->roles()));
  LODESTONE_RETURN_IF_ERROR(CheckFinite(views));
  LODESTONE_RETURN_IF_ERROR(CheckGuards(views));
  absl::flat_hash_map<ShardId, size_t> group_of;
  for (const PartView& view : views) {
    if (std::find(call->tables.begin(), call->tables.end(), view.table) == call->tables.end()) {
      if (!view.table->is_dense()) LODESTONE_RETURN_IF_ERROR(catalog_->CheckMemory(*view.table, 0));
      call->tables.push_back(view.table);
      if (view.last_for_ps) call->counted.push_back(view.table);
    }
    const auto [group, inserted] = group_of.try_emplace(view.shard, call->shards.size());
    if (inserted) {
      call->shards.emplace_back();
      call->shards.back().shard = shards_->Get(view.shard);
    }
    call->shards[group->second].parts.push_back(view);
  }
  return absl::OkStatus();
}

void PushPath::Run(const std::shared_ptr<Call>& call) {
  Executors& executors = shards_->executors();
  std::vector<std::vector<ShardPush*>> by_executor(executors.size());
  for (ShardPush& push : call->shards) by_executor[shards_->ExecutorOf(push.shard->id())].push_back(&push);
  std::vector<Share> shares;
  for (size_t e = 0; e < executors.size(); ++e) {
    if (by_executor[e].empty()) continue;
    size_t rows = 0;
    for (const ShardPush* push : by_executor[e]) {
      for (const PartView& part : push->parts) rows += part.row_count;
    }
    shares.push_back(
        {&executors[e], rows, [this, call, e, pushes = std::move(by_executor[e])] { Apply(call, e, pushes); }});
  }
  if (shares.empty()) return Finish(call.get(), nullptr);
  call->ends_left.store(shares.size() * std::max<size_t>(1, log_->ends()), std::memory_order_relaxed);
  call->shares.resize(executors.size());
  Spread(std::move(shares));
}

void PushPath::Apply(const std::shared_ptr<Call>& call, size_t e, std::span<ShardPush* const> pushes) {
  const v1::PushRequest& header = call->header;
  const bool commits = log_->HasLogOrFollowers();
  ExecutorShare& share = call->shares[e];
  share.taken_ns = NowNs();
  std::vector<ShardLog::Record> records;
  std::vector<ReplicaSink::Position> positions;
  for (size_t i = 0; i < pushes.size(); ++i) {
    ShardPush* const push = pushes[i];
    const ShardPush* const next = i + 1 < pushes.size() ? pushes[i + 1] : nullptr;
    if (next != nullptr && shards_->Owns(next->shard->id())) next->shard->Prefetch(next->parts);
    if (!shards_->Owns(push->shard->id())) {
      push->result = NotOwned(push->shard->id());
      continue;
    }
    Evictions evictions;
    push->result = push->shard->Push(header.worker_incarnation(), header.sequence(), push->parts, call->now_ms,
                                     commits ? &evictions : nullptr);
    if (!commits || !push->result.ok()) continue;
    positions.push_back({push->shard->id(), push->result->version});
    if (push->result->duplicate) continue;
    records.push_back(RecordOf(header, push->parts, evictions));
    log_->Stamp(push->shard, call->now_ms, {&records.back(), 1});
  }
  share.applied_ns = NowNs();
  const auto end = [this, call, e] {
    if (call->ends_left.fetch_sub(1, std::memory_order_acq_rel) == 1) Finish(call.get(), &call->shares[e]);
  };
  if (!commits) return end();
  // Without records too: a duplicate is acknowledged when the push that it repeats is durable.
  log_->Append(e, records, positions, call, [call, e, end](CommitEnd where, const absl::Status& status) {
    (where == CommitEnd::kLog ? call->shares[e].log : call->shares[e].replica) = status;
    end();
  });
}

void PushPath::Finish(Call* call, const ExecutorShare* last) {
  for (const auto status : {&ExecutorShare::log, &ExecutorShare::replica}) {
    for (const ExecutorShare& share : call->shares) {
      if (!(share.*status).ok()) return call->done(share.*status);
    }
  }
  if (absl::Status status = gate_->CheckServing(); !status.ok()) return call->done(std::move(status));
  v1::PushResponse response;
  bool applied = call->shards.empty();
  for (const ShardPush& push : call->shards) {
    if (!push.result.ok()) {
      Refuse(push.result.status(), call->header.worker_incarnation());
      call->done(push.result.status());
      return;
    }
    v1::PushResponse::ShardResult* out = response.add_shards();
    out->set_shard(push.shard->id());
    out->set_version(push.result->version);
    out->set_duplicate(push.result->duplicate);
    applied |= !push.result->duplicate;
  }
  Observe(*call, last);  // Before it is counted: what is counted has been observed.
  if (applied) {
    for (Table* table : call->counted) table->counters().updates.fetch_add(1, std::memory_order_relaxed);
    pushes_.fetch_add(1, std::memory_order_relaxed);
    sessions_->PushApplied(call->header.worker_incarnation());
  } else {
    duplicates_.fetch_add(1, std::memory_order_relaxed);
  }
  call->done(std::move(response));
  if (applied && broadcast_listener_) TellDue(*call);
}

void PushPath::TellDue(const Call& call) const {
  std::vector<TableId> due;
  for (Table* table : call.counted) {
    const uint32_t every = table->spec().broadcast().every_pushes();
    if (every == 0) continue;
    if ((table->counters().pushes.fetch_add(1, std::memory_order_relaxed) + 1) % every == 0) {
      due.push_back(table->id());
    }
  }
  if (!due.empty()) broadcast_listener_(due);
}

void PushPath::Observe(const Call& call, const ExecutorShare* last) const {
  if (last == nullptr) return push_duration_metric.ObserveNs(NowNs() - call.arrived_ns);
  push_queue_metric.ObserveNs(last->taken_ns - call.arrived_ns);
  push_apply_metric.ObserveNs(last->applied_ns - last->taken_ns);
  const bool commits = log_->HasLogOrFollowers();
  const int64_t end_ns = commits ? NowNs() : last->applied_ns;
  if (commits) push_commit_metric.ObserveNs(end_ns - last->applied_ns);
  push_duration_metric.ObserveNs(end_ns - call.arrived_ns);
}

void PushPath::Refuse(const absl::Status& status, Incarnation worker) {
  if (absl::IsAborted(status)) return;  // For the shard's owner to judge.
  refused_.fetch_add(1, std::memory_order_relaxed);
  sessions_->PushRefused(worker);
  if (refusal_listener_) refusal_listener_(worker, status);
  MutexLock lock(&mu_);
  last_refusal_ = absl::StrCat("worker incarnation ", worker, ": ", status.ToString());
}

void PushPath::FillStatus(v1::ServerStatus* status) const {
  status->set_pushes(pushes_.load());
  status->set_pushes_duplicate(duplicates_.load());
  status->set_pushes_refused(refused_.load());
  status->set_push_bytes(bytes_.load());
  status->set_pushes_per_second(rate_.PerSecond());
  MutexLock lock(&mu_);
  status->set_last_refusal(last_refusal_);
}

}  // namespace lodestone::server
