#include "server/store/push_path.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/planted_defect.h"
#include "common/base/status.h"
#include "common/telemetry/metrics.h"
#include "common/wire/part.h"
#include "server/shard/part_view.h"
#include "server/shard/shard.h"
#include "server/shard/spread.h"
#include "server/store/catalog.h"
#include "server/store/commit_log.h"
#include "server/store/logged_evictions.h"
#include "server/store/push_call.h"
#include "server/store/request_view.h"
#include "server/store/serving_gate.h"
#include "server/store/sessions.h"
#include "server/store/shard_set.h"
#include "server/store/step_closer.h"
#include "server/table/norm_guard.h"

namespace lodestone::server {
namespace {

HistogramMetric push_duration_metric("lodestone_ps_push_duration_seconds",
                                     "From a push's arrival to its acknowledgement; refused ones do not count.");
constexpr char kPushStage[] = "lodestone_ps_push_stage_duration_seconds";
constexpr char kPushStages[] =
    "What a push's time went by, in the share of it that was done last: queue, for the executor; apply; "
    "commit, until log and follower had it.";
constexpr const char* kStageNames[] = {"queue", "apply", "commit"};
HistogramMetric push_queue_metric(kPushStage, kPushStages, {{"stage", "queue"}});
HistogramMetric push_apply_metric(kPushStage, kPushStages, {{"stage", "apply"}});
HistogramMetric push_commit_metric(kPushStage, kPushStages, {{"stage", "commit"}});

// Adds what a view shows of `part`, which may be of several shards.
void AddPart(const v1::Part& part, const PartView& view, v1::LoggedPush* push) {
  v1::Part& logged = *push->add_parts();
  if (part.shards_size() == 0) {
    logged = part;
    return;
  }
  logged.set_shard(view.shard);
  logged.set_table(part.table());
  logged.set_row_count(static_cast<uint32_t>(view.row_count));
  logged.set_more(part.more());
  if (view.read_version > 0) logged.add_read_versions(view.read_version);
}

// The log record of one shard's share of a push: `parts` of `header`.
ShardLog::Record RecordOf(const v1::PushRequest& header, std::span<const PartView> parts, const Evictions& evictions) {
  ShardLog::Record record;
  v1::LoggedPush& push = *record.message.mutable_push();
  push.set_worker(header.worker_incarnation());
  push.set_sequence(header.sequence());
  if (Planted(Defect::kMarkNotLogged)) {
    // A mark that is no worker's, so that the log can be read.
    static std::atomic<uint64_t> next{static_cast<uint64_t>(NowNs())};
    push.set_worker(1);
    push.set_sequence(next.fetch_add(1, std::memory_order_relaxed));
  }
  for (const PartView& part : parts) {
    AddPart(header.parts(part.index), part, &push);
    if (!part.takes_new && absl::c_find(push.full_tables(), part.table->id()) == push.full_tables().end()) {
      push.add_full_tables(part.table->id());
    }
    if (!part.keys.empty()) record.payload.push_back(part.keys);
    record.payload.push_back(part.gradients);
  }
  for (const EvictedKeys& group : evictions.groups()) *push.add_evicted() = ToProto(group);
  if (header.has_contribution()) *push.mutable_contribution() = header.contribution();
  return record;
}

bool AreStepsHeld(const PushCall& call) {
  return absl::c_any_of(call.tables, [](Table* table) { return table->counters().steps_held.load(); });
}

}  // namespace

PushPath::PushPath(const TimeSource* time, const ServingGate* gate, ShardSet* shards, CommitLog* log, Catalog* catalog,
                   Sessions* sessions, StepCloser* closer)
    : time_(time),
      gate_(gate),
      shards_(shards),
      log_(log),
      catalog_(catalog),
      sessions_(sessions),
      closer_(closer),
      admission_(shards, &catalog->budget()) {}

absl::StatusOr<size_t> PushPath::PayloadBytes(const v1::PushRequest& header, size_t* keys) const {
  const absl::StatusOr<size_t> bytes = PushPayloadBytes(header.parts(), *catalog_->tables(), keys);
  if (bytes.ok()) return bytes;  // Push checks the rest.
  LODESTONE_RETURN_IF_ERROR(CheckTaken(header, time_->NowMs()));
  // The tables may have come meanwhile.
  return PushPayloadBytes(header.parts(), *catalog_->tables(), keys);
}

void PushPath::Push(v1::PushRequest header, RequestPayload payload, Done done) {
  const auto call = std::make_shared<PushCall>(&catalog_->budget());
  call->arrived_ns = NowNs();
  call->now_ms = time_->NowMs();
  call->header = std::move(header);
  call->payload = std::move(payload);
  call->done = std::move(done);
  if (absl::Status status = Prepare(call.get()); !status.ok()) return RefuseCall(call.get(), std::move(status));
  if (admission_.AdmitAtOnce(call.get())) return Run(call);
  admission_.Decide(call, [this, call](absl::Status status) {
    if (!status.ok()) return RefuseCall(call.get(), std::move(status));
    Run(call);
  });
}

void PushPath::RefuseCall(PushCall* call, absl::Status status) {
  Refuse(status, call->header.worker_incarnation());
  call->done(std::move(status));
}

absl::Status PushPath::CheckTaken(const v1::PushRequest& header, int64_t now_ms) const {
  LODESTONE_RETURN_IF_ERROR(gate_->CheckReady());
  LODESTONE_RETURN_IF_ERROR(gate_->CheckServing());
  for (const v1::Part& part : header.parts()) {
    absl::Status status;
    ForEachShard(part, [&](ShardId shard, uint32_t) {
      if (status.ok() && shard < shards_->size() && !shards_->Owns(shard)) status = NotOwned(shard);
    });
    LODESTONE_RETURN_IF_ERROR(status);
  }
  LODESTONE_RETURN_IF_ERROR(sessions_->Push(header.worker_incarnation(), header.sequence(), header.clock(), now_ms));
  return log_->health();
}

absl::Status PushPath::Prepare(PushCall* call) {
  const v1::PushRequest& header = call->header;
  call->session_ends = sessions_->ends();
  LODESTONE_RETURN_IF_ERROR(CheckTaken(header, call->now_ms));
  const std::shared_ptr<const TableMap> map = catalog_->tables();
  LODESTONE_ASSIGN_OR_RETURN(const std::vector<PartView> views,
                             ViewParts(PartKind::kPush, header.parts(), call->payload.payload.bytes(),
                                       call->payload.key_bytes(), *map, shards_->roles()));
  LODESTONE_RETURN_IF_ERROR(CheckContribution(views, header));
  absl::flat_hash_map<ShardId, size_t> group_of;
  const size_t shards_max = std::min<size_t>(views.size(), shards_->size());
  group_of.reserve(shards_max);
  call->shards.reserve(shards_max);
  absl::flat_hash_map<Table*, size_t> place_of;
  for (const PartView& view : views) {
    const auto [place, is_first] = place_of.try_emplace(view.table, call->tables.size());
    if (is_first) {
      call->tables.push_back(view.table);
      call->bytes_at_most.push_back(0);
      if (view.last_for_ps) call->counted.push_back(view.table);
    }
    if (view.table->settings().collects_steps()) {
      call->contributes = true;
      call->contribution_bytes.resize(std::max(call->contribution_bytes.size(), place->second + 1));
      call->contribution_bytes[place->second] += view.keys.size() + view.gradients.size();
    }
    if (!view.table->is_dense()) {
      call->bytes_at_most[place->second] += EmbeddingTable::BytesAtMost(*view.table, view.row_count);
    }
    const auto [group, inserted] = group_of.try_emplace(view.shard, call->shards.size());
    if (inserted) {
      LODESTONE_RETURN_IF_ERROR(log_->CheckCopies(view.shard));
      call->shards.emplace_back();
      call->shards.back().shard = shards_->Get(view.shard);
      call->shards.back().executor = shards_->ExecutorOf(view.shard);
    }
    call->shards[group->second].parts.push_back(view);
  }
  call->by_executor.resize(shards_->executors().size());
  for (ShardPush& push : call->shards) call->by_executor[push.executor].push_back(&push);
  LODESTONE_RETURN_IF_ERROR(CheckQueues(*call));
  LODESTONE_RETURN_IF_ERROR(CheckFinite(views));
  call->guards = JudgeGuards(views, &call->norms);
  return absl::OkStatus();
}

absl::Status PushPath::CheckQueues(const PushCall& call) const {
  for (size_t e = 0; e < call.by_executor.size(); ++e) {
    if (!call.by_executor[e].empty()) LODESTONE_RETURN_IF_ERROR(shards_->executors().CheckQueue(e));
  }
  return absl::OkStatus();
}

void PushPath::Run(const std::shared_ptr<PushCall>& call) {
  bytes_.fetch_add(call->payload.size(), std::memory_order_relaxed);
  Executors& executors = shards_->executors();
  std::vector<Share> shares;
  for (size_t e = 0; e < executors.size(); ++e) {
    if (call->by_executor[e].empty()) continue;
    size_t rows = 0;
    for (const ShardPush* push : call->by_executor[e]) {
      for (const PartView& part : push->parts) rows += part.row_count;
    }
    shares.push_back({&executors[e], rows, [this, call, e] { Apply(call, e); }});
  }
  if (shares.empty()) return Finish(call.get(), nullptr);
  call->executors_left.store(shares.size(), std::memory_order_relaxed);
  call->ends_left.store(shares.size() * EndsOfATurn(), std::memory_order_relaxed);
  call->turns.resize(executors.size());
  Spread(std::move(shares));
}

void PushPath::Apply(const std::shared_ptr<PushCall>& call, size_t e) {
  std::span<ShardPush* const> pushes = call->by_executor[e];
  while (true) {
    pushes = pushes.subspan(ApplyTurn(call, e, pushes));
    if (pushes.empty()) return;
    shards_->executors()[e].Yield();
  }
}

size_t PushPath::ApplyTurn(const std::shared_ptr<PushCall>& call, size_t e, std::span<ShardPush* const> pushes) {
  const bool commits = log_->HasLogOrFollowers();
  const int64_t began_ns = NowNs();
  std::list<PushTurn>& turns = call->turns[e];
  PushTurn::Times times = turns.empty() ? PushTurn::Times{.ended_ns = call->arrived_ns} : turns.back().times;
  times.waited_ns += began_ns - times.ended_ns;
  times.ended_ns = began_ns;
  // A session that has ended since: the shards may have forgotten what they have applied.
  const bool has_session =
      sessions_->ends() == call->session_ends || sessions_->IsOpen(call->header.worker_incarnation());
  std::vector<ShardLog::Record> records;
  std::vector<ReplicaSink::Position> positions;
  size_t i = 0;
  for (; i < pushes.size() && (i == 0 || !shards_->executors().IsTurnOver(e, times.ended_ns - began_ns)); ++i) {
    ShardPush* const push = pushes[i];
    const ShardPush* const next = i + 1 < pushes.size() ? pushes[i + 1] : nullptr;
    if (next != nullptr && shards_->Owns(next->shard->id())) next->shard->Prefetch(next->parts);
    if (absl::Status refused = CheckApplies(*call, *push, has_session); !refused.ok()) {
      push->result = std::move(refused);
    } else {
      ApplyToShard(*call, push, commits, &records, &positions);
    }
    const int64_t ended_ns = NowNs();
    shards_->loads().CountPushTime(push->shard->id(), ended_ns - times.ended_ns);
    times.ended_ns = ended_ns;
  }
  times.apply_ns += times.ended_ns - began_ns;
  PushTurn* const turn = &turns.emplace_back();
  turn->times = times;
  if (i < pushes.size()) {
    call->ends_left.fetch_add(EndsOfATurn(), std::memory_order_relaxed);
  } else if (call->executors_left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    call->room.Release();  // The tables count it.
  }
  const auto end = [this, call, e] {
    if (call->ends_left.fetch_sub(1, std::memory_order_acq_rel) == 1) Finish(call.get(), &call->turns[e].back());
  };
  if (!commits) {  // There is no log: one end at most is counted of a turn.
    end();
    return i;
  }
  // Without records too: a duplicate is acknowledged when the push that it repeats is durable. What pulls read
  // when they have their turn is in the log by then.
  log_->Append(e, records, positions, call, [turn, end](CommitEnd where, const absl::Status& status) {
    (where == CommitEnd::kLog ? turn->log : turn->replica) = status;
    end();
  });
  return i;
}

absl::Status PushPath::CheckApplies(const PushCall& call, const ShardPush& push, bool has_session) const {
  if (!shards_->Owns(push.shard->id())) return NotOwned(push.shard->id());
  if (!has_session) {
    return absl::FailedPreconditionError(
        absl::StrCat("the session of worker incarnation ", call.header.worker_incarnation(), " has ended; join again"));
  }
  if (call.contributes && AreStepsHeld(call)) {
    return absl::UnavailableError("the consistency of a table is being changed; send the push again");
  }
  return absl::OkStatus();
}

void PushPath::ApplyToShard(const PushCall& call, ShardPush* push, bool commits, std::vector<ShardLog::Record>* records,
                            std::vector<ReplicaSink::Position>* positions) const {
  const v1::PushRequest& header = call.header;
  uint64_t bytes = 0;
  for (const PartView& part : push->parts) {
    bytes += part.keys.size() + part.gradients.size();
    if (part.row_count > 0) shards_->hot_keys().Count(part.shard, part.table->id(), part.keys, part.row_count);
  }
  shards_->loads().CountPush(push->shard->id(), bytes);
  Evictions evictions;
  push->result =
      push->shard->Push(header.worker_incarnation(), header.sequence(), push->parts, call.now_ms,
                        commits ? &evictions : nullptr, header.has_contribution() ? &header.contribution() : nullptr);
  if (call.contributes && push->result.ok()) closer_->Contributed(*push->shard);
  if (!push->result.ok()) return;
  if (commits) positions->push_back({push->shard->id(), push->result->version});
  if (push->result->duplicate) return;
  if (!commits) return log_->BeginTerm(push->shard);
  records->push_back(RecordOf(header, push->parts, evictions));
  log_->Stamp(push->shard, call.now_ms, {&records->back(), 1});
}

size_t PushPath::EndsOfATurn() const { return std::max<size_t>(1, log_->ends()); }

void PushPath::Finish(PushCall* call, const PushTurn* last) {
  for (const auto status : {&PushTurn::log, &PushTurn::replica}) {
    for (const std::list<PushTurn>& turns : call->turns) {
      for (const PushTurn& turn : turns) {
        if (!(turn.*status).ok()) return call->done(turn.*status);
      }
    }
  }
  if (absl::Status status = gate_->CheckServing(); !status.ok()) return call->done(std::move(status));
  v1::PushResponse response;
  response.set_settings_revision(catalog_->settings_revision());
  bool applied = call->shards.empty();
  bool late = false;
  for (const ShardPush& push : call->shards) {
    if (!push.result.ok()) {
      return RefuseCall(call, push.result.status());
    }
    if (call->header.brief()) {
      const auto place = static_cast<uint32_t>(response.versions_size());
      response.add_versions(push.result->version);
      if (push.result->duplicate) response.add_duplicates(place);
      if (push.result->late) response.add_late(place);
    } else {
      v1::PushResponse::ShardResult* out = response.add_shards();
      out->set_shard(push.shard->id());
      out->set_version(push.result->version);
      out->set_duplicate(push.result->duplicate);
      out->set_late(push.result->late);
    }
    applied |= !push.result->duplicate;
  }
  Observe(*call, last);  // Before it is counted: what is counted has been observed.
  if (applied) {
    for (const GuardedNorm& norm : call->norms) norm.guard->Take(norm.mean_square);
    for (Table* table : call->counted) table->counters().updates.fetch_add(1, std::memory_order_relaxed);
    pushes_.fetch_add(1, std::memory_order_relaxed);
    const v1::PushRequest& header = call->header;
    late = sessions_->PushApplied(header.worker_incarnation(), header.sequence(), !call->counted.empty());
  } else {
    duplicates_.fetch_add(1, std::memory_order_relaxed);
  }
  call->done(std::move(response));
  if (applied && broadcast_listener_) TellDue(*call, late);
}

void PushPath::TellDue(const PushCall& call, bool late) const {
  std::vector<TableId> due;
  for (Table* table : call.counted) {
    if (table->settings().collects_steps()) continue;  // Steps count, not what comes for them.
    const uint32_t every = table->spec().broadcast().every_pushes();
    if (every == 0) continue;
    if ((table->counters().pushes.fetch_add(1, std::memory_order_relaxed) + 1) % every == 0) {
      due.push_back(table->id());
    }
  }
  if (!due.empty()) sessions_->NoteDue();
  // Messages of one push end in any order, by executors and by what is sent again: one that ends after the message of
  // its push that was counted, and perhaps after the broadcast for which that counted, gets one more.
  for (Table* table : call.tables) {
    if (!late || table->settings().collects_steps() || table->spec().broadcast().every_pushes() == 0 ||
        absl::c_linear_search(call.counted, table))
      continue;
    due.push_back(table->id());
  }
  for (const ShardPush& push : call.shards) {
    for (const AppliedStep& applied : push.result->applied) {
      if (IsBroadcast(applied) && !absl::c_linear_search(due, applied.table)) due.push_back(applied.table);
    }
  }
  if (!due.empty()) broadcast_listener_(due);
}

bool PushPath::IsBroadcast(const AppliedStep& applied) const {
  const std::optional<v1::Broadcast> broadcast = catalog_->BroadcastOf(applied.table);
  const uint32_t every = broadcast.has_value() ? broadcast->every_pushes() : 0;
  return every > 0 && (applied.step + 1) % every == 0;
}

void PushPath::TellApplied(const AppliedStep& applied) const {
  const TableId table = applied.table;
  if (broadcast_listener_ && IsBroadcast(applied)) broadcast_listener_({&table, 1});
}

void PushPath::Observe(const PushCall& call, const PushTurn* last) const {
  if (last == nullptr) return push_duration_metric.ObserveNs(NowNs() - call.arrived_ns);
  const PushTurn::Times& times = last->times;
  push_queue_metric.ObserveNs(times.waited_ns);
  push_apply_metric.ObserveNs(times.apply_ns);
  const bool commits = log_->HasLogOrFollowers();
  const int64_t end_ns = commits ? NowNs() : times.ended_ns;
  if (commits) push_commit_metric.ObserveNs(end_ns - times.ended_ns);
  const int64_t stages_ns[kStages] = {times.waited_ns, times.apply_ns, end_ns - times.ended_ns};
  for (size_t i = 0; i < kStages; ++i) stage_ns_[i].fetch_add(stages_ns[i], std::memory_order_relaxed);
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
  for (size_t i = 0; i < kStages; ++i) {
    v1::StageTime* const stage = status->add_push_stages();
    stage->set_stage(kStageNames[i]);
    stage->set_seconds(1e-9 * static_cast<double>(stage_ns_[i].load()));
  }
  MutexLock lock(&mu_);
  status->set_last_refusal(last_refusal_);
}

}  // namespace lodestone::server
