// The store's data path: a push and a pull on their way through the executors.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/telemetry/metrics.h"
#include "server/shard/spread.h"
#include "server/store/copied_bytes.h"
#include "server/store/delta_builder.h"
#include "server/store/store_impl.h"

namespace lodestone::server {
namespace {

HistogramMetric push_metric("lodestone_ps_push_duration_seconds",
                            "From a push's arrival to its acknowledgement; refused ones do not count.");
constexpr char kPushStage[] = "lodestone_ps_push_stage_duration_seconds";
constexpr char kPushStages[] =
    "What a push's time went by, in the share of it that was done last: queue, until the executor took it; apply; "
    "commit, "
    "until log and follower had it.";
HistogramMetric push_queue_metric(kPushStage, kPushStages, {{"stage", "queue"}});
HistogramMetric push_apply_metric(kPushStage, kPushStages, {{"stage", "apply"}});
HistogramMetric push_commit_metric(kPushStage, kPushStages, {{"stage", "commit"}});

HistogramMetric pull_metric("lodestone_ps_pull_duration_seconds",
                            "From a pull's arrival to its answer; refused ones do not count.");
constexpr char kPullStage[] = "lodestone_ps_pull_stage_duration_seconds";
constexpr char kPullStages[] =
    "What the time of a pull of rows went by, in the share of it that was done last: queue, until the executor took "
    "it; "
    "read.";
HistogramMetric pull_queue_metric(kPullStage, kPullStages, {{"stage", "queue"}});
HistogramMetric pull_read_metric(kPullStage, kPullStages, {{"stage", "read"}});

PartBytes BytesOf(const Numbers& numbers) {
  if (!numbers.keys.has_value()) return numbers.payload.bytes();
  return {numbers.payload.bytes(), numbers.keys->bytes()};
}

// Of all keys and values, whether or not they all had to be sent.
size_t SizeOf(const Numbers& numbers) {
  return numbers.payload.size() + (numbers.keys.has_value() ? numbers.keys->size() : 0);
}

// What the log keeps of one shard's share of a push: `parts` are those of `header` at `indices`.
ShardLog::Record RecordOf(const v1::PushRequest& header, std::span<const int> indices,
                          std::span<const Shard::PushPart> parts, const Evictions& evictions) {
  ShardLog::Record record;
  v1::LoggedPush& push = *record.message.mutable_push();
  push.set_worker(header.worker_incarnation());
  push.set_sequence(header.sequence());
  for (size_t i = 0; i < parts.size(); ++i) {
    *push.add_parts() = header.parts(indices[i]);
    if (!parts[i].keys.empty()) record.payload.push_back(parts[i].keys);
    record.payload.push_back(parts[i].gradients);
  }
  for (const EvictedKeys& group : evictions.groups()) *push.add_evicted() = ToProto(group);
  return record;
}

}  // namespace

absl::Status Store::Impl::CheckQueues() const {
  for (const auto& executor : executors_) {
    const size_t length = executor->queue_length();
    if (length >= limits::kExecutorQueueMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat("an executor of this ps has ", length, " messages waiting, its limit; try again later"));
    }
  }
  return absl::OkStatus();
}

absl::Status Store::Impl::CheckOwnLogs() const {
  for (const auto& log : logs_) LODESTONE_RETURN_IF_ERROR(log->health());
  return absl::OkStatus();
}

absl::Status Store::Impl::CheckLogs() const {
  LODESTONE_RETURN_IF_ERROR(CheckOwnLogs());
  return replicas_ == nullptr ? absl::OkStatus() : replicas_->health();
}

absl::StatusOr<size_t> Store::Impl::PushPayloadBytes(const v1::PushRequest& header, size_t* keys) const {
  return lodestone::server::PushPayloadBytes(header.parts(), *tables(), keys);
}

absl::Status Store::Impl::PreparePush(PushCall* call) {
  LODESTONE_RETURN_IF_ERROR(CheckReady());
  LODESTONE_RETURN_IF_ERROR(CheckServing());
  const v1::PushRequest& header = call->header;
  // Before anything else is judged, which is its owner's to do.
  for (const v1::Part& part : header.parts()) {
    if (part.shard() < roles_.shards() && roles_.Of(part.shard()) != ShardRole::kOwns) return NotOwned(part.shard());
  }
  LODESTONE_RETURN_IF_ERROR(
      sessions_.Push(header.worker_incarnation(), header.sequence(), header.clock(), call->now_ms));
  LODESTONE_RETURN_IF_ERROR(CheckQueues());
  LODESTONE_RETURN_IF_ERROR(CheckLogs());
  const std::shared_ptr<const TableMap> map = tables();
  LODESTONE_ASSIGN_OR_RETURN(call->views,
                             ViewParts(PartKind::kPush, header.parts(), BytesOf(call->numbers), *map, roles_));
  LODESTONE_RETURN_IF_ERROR(CheckFinite(call->views));
  LODESTONE_RETURN_IF_ERROR(CheckGuards(call->views));
  absl::flat_hash_map<ShardId, size_t> group_of;
  for (int i = 0; i < header.parts_size(); ++i) {
    const PartView& view = call->views[i];
    Table* const table = view.entry->table.get();
    if (std::find(call->tables.begin(), call->tables.end(), table) == call->tables.end()) {
      if (!table->is_dense()) LODESTONE_RETURN_IF_ERROR(catalog_.CheckMemory(*table, 0));
      call->tables.push_back(table);
    }
    const auto [group, inserted] = group_of.try_emplace(view.shard, call->shards.size());
    if (inserted) {
      call->shards.emplace_back();
      call->shards.back().shard = shards_[view.shard].get();
    }
    ShardPush& push = call->shards[group->second];
    push.parts.push_back({table, view.blocks, view.keys, view.row_count, view.gradients});
    push.part_indices.push_back(i);
  }
  return absl::OkStatus();
}

void Store::Impl::Refuse(const absl::Status& status, Incarnation worker) {
  if (absl::IsAborted(status)) return;  // It is somebody else's to judge.
  pushes_refused_.fetch_add(1, std::memory_order_relaxed);
  sessions_.PushRefused(worker);
  if (refusal_listener_) refusal_listener_(worker, status);
  MutexLock lock(&status_mu_);
  last_refusal_ = absl::StrCat("worker incarnation ", worker, ": ", status.ToString());
}

void Store::Impl::Push(v1::PushRequest header, Numbers numbers, PushDone done) {
  auto call = std::make_shared<PushCall>();
  call->arrived_ns = NowNs();
  call->now_ms = options_.time->NowMs();
  call->header = std::move(header);
  call->numbers = std::move(numbers);
  call->done = std::move(done);
  if (absl::Status status = PreparePush(call.get()); !status.ok()) {
    Refuse(status, call->header.worker_incarnation());
    call->done(std::move(status));
    return;
  }
  push_bytes_.fetch_add(SizeOf(call->numbers), std::memory_order_relaxed);
  RunPush(call);
}

void Store::Impl::RunPush(const std::shared_ptr<PushCall>& call) {
  std::vector<std::vector<ShardPush*>> by_executor(executors_.size());
  for (ShardPush& push : call->shards) by_executor[ExecutorOf(push.shard->id())].push_back(&push);
  std::vector<Share> shares;
  for (size_t e = 0; e < executors_.size(); ++e) {
    if (by_executor[e].empty()) continue;
    size_t rows = 0;
    for (const ShardPush* push : by_executor[e]) {
      for (const Shard::PushPart& part : push->parts) rows += part.row_count;
    }
    shares.push_back({executors_[e].get(), rows,
                      [this, call, e, pushes = std::move(by_executor[e])] { ApplyPushes(call, e, pushes); }});
  }
  if (shares.empty()) return FinishPush(call.get(), nullptr);
  const size_t hearers = (logs_.empty() ? 0 : 1) + (replicas_ == nullptr ? 0 : 1);
  call->ends_left.store(shares.size() * std::max<size_t>(1, hearers), std::memory_order_relaxed);
  call->shares.resize(executors_.size());
  Spread(std::move(shares));
}

void Store::Impl::ApplyPushes(const std::shared_ptr<PushCall>& call, size_t e, std::span<ShardPush* const> pushes) {
  const v1::PushRequest& header = call->header;
  PushShare& share = call->shares[e];
  share.taken_ns = NowNs();
  std::vector<ShardLog::Record> records;
  std::vector<ReplicaSink::Position> positions;
  for (size_t i = 0; i < pushes.size(); ++i) {
    ShardPush* const push = pushes[i];
    const ShardPush* const next = i + 1 < pushes.size() ? pushes[i + 1] : nullptr;
    if (next != nullptr && roles_.Of(next->shard->id()) == ShardRole::kOwns) next->shard->Prefetch(next->parts);
    if (roles_.Of(push->shard->id()) != ShardRole::kOwns) {
      push->result = NotOwned(push->shard->id());
      continue;
    }
    Evictions evictions;
    push->result = push->shard->Push(header.worker_incarnation(), header.sequence(), push->parts, call->now_ms,
                                     HasHearers() ? &evictions : nullptr);
    if (!HasHearers() || !push->result.ok()) continue;
    positions.push_back({push->shard->id(), push->result->version});
    if (push->result->duplicate) continue;
    records.push_back(RecordOf(header, push->part_indices, push->parts, evictions));
    Stamp(push->shard, call->now_ms, {&records.back(), 1});
  }
  share.applied_ns = NowNs();
  const auto end = [this, call, e] {
    if (call->ends_left.fetch_sub(1, std::memory_order_acq_rel) == 1) FinishPush(call.get(), &call->shares[e]);
  };
  if (!HasHearers()) return end();
  // Without records too: a duplicate is acknowledged when the push that it repeats is durable.
  if (replicas_ != nullptr) {
    replicas_->Append(records, call);
    replicas_->Await(positions, [call, e, end](const absl::Status& status) {
      call->shares[e].replica = status;
      end();
    });
  }
  ShardLog* const log = LogOf(e);
  if (log == nullptr) return;
  log->Append(records, call, [call, e, end](const absl::Status& status) {
    call->shares[e].log = status;
    end();
  });
}

void Store::Impl::ObservePush(const PushCall& call, const PushShare* last) const {
  if (last == nullptr) return push_metric.ObserveNs(NowNs() - call.arrived_ns);
  push_queue_metric.ObserveNs(last->taken_ns - call.arrived_ns);
  push_apply_metric.ObserveNs(last->applied_ns - last->taken_ns);
  const int64_t end_ns = HasHearers() ? NowNs() : last->applied_ns;
  if (HasHearers()) push_commit_metric.ObserveNs(end_ns - last->applied_ns);
  push_metric.ObserveNs(end_ns - call.arrived_ns);
}

void Store::Impl::FinishPush(PushCall* call, const PushShare* last) {
  for (const auto status : {&PushShare::log, &PushShare::replica}) {
    for (const PushShare& share : call->shares) {
      if (!(share.*status).ok()) return call->done(share.*status);
    }
  }
  if (absl::Status status = CheckServing(); !status.ok()) return call->done(std::move(status));
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
  ObservePush(*call, last);  // Before it is counted: what is counted has been observed.
  if (applied) {
    for (Table* table : call->tables) table->counters().updates.fetch_add(1, std::memory_order_relaxed);
    pushes_.fetch_add(1, std::memory_order_relaxed);
    sessions_.PushApplied(call->header.worker_incarnation());
  } else {
    pushes_duplicate_.fetch_add(1, std::memory_order_relaxed);
  }
  call->done(std::move(response));
  if (!applied || !broadcast_listener_) return;
  for (Table* table : call->tables) {
    const uint32_t every = table->spec().broadcast().every_pushes();
    if (every == 0) continue;
    if ((table->counters().pushes.fetch_add(1, std::memory_order_relaxed) + 1) % every == 0) {
      broadcast_listener_(table->id());
    }
  }
}

void Store::Impl::Pull(v1::PullRequest header, Numbers numbers, PullDone done) {
  if (absl::Status status = CheckReady(); !status.ok()) return done(std::move(status));
  if (absl::Status status = CheckServing(); !status.ok()) return done(std::move(status));
  if (absl::Status status = CheckQueues(); !status.ok()) return done(std::move(status));
  auto call = std::make_shared<PullCall>();
  call->arrived_ns = NowNs();
  call->now_ms = options_.time->NowMs();
  sessions_.Contact(header.worker_incarnation(), call->now_ms);
  call->header = std::move(header);
  call->numbers = std::move(numbers);
  call->done = std::move(done);
  const std::shared_ptr<const TableMap> map = tables();
  auto views = ViewParts(PartKind::kPull, call->header.parts(), BytesOf(call->numbers), *map, roles_);
  if (!views.ok()) return call->done(views.status());
  call->views = *std::move(views);
  RunPull(call);
}

void Store::Impl::RunPull(const std::shared_ptr<PullCall>& call) {
  v1::PullResponse& header = call->values.header;
  std::vector<grpc::Slice>& payload = call->values.payload;
  call->rows_at.resize(call->views.size());
  call->row_parts.resize(executors_.size());
  for (size_t i = 0; i < call->views.size(); ++i) {
    const PartView& view = call->views[i];
    v1::Part* out = header.add_parts();
    out->set_shard(view.shard);
    out->set_table(view.entry->table->id());
    header.add_shard_versions(shards_[view.shard]->version());
    if (view.entry->table->is_dense()) {
      const DenseTable* const dense = view.entry->dense[view.shard];
      for (const BlockIndex block : view.blocks) {
        DenseTable::BlockValue value = dense->Read(block);
        out->add_blocks(block);
        out->add_block_versions(value.version);
        const size_t bytes = value.values->size_bytes();
        payload.push_back(SliceOf(std::move(value.values), bytes));
      }
    } else {
      out->set_row_count(static_cast<uint32_t>(view.row_count));
      if (call->row_runs.empty() || call->row_runs.back().slice + 1 != payload.size()) {
        call->row_runs.push_back({payload.size(), call->row_values});
        payload.emplace_back();
      }
      call->rows_at[i] = call->row_values;
      call->row_values += view.values;
      call->row_parts[ExecutorOf(view.shard)].push_back(i);
    }
  }
  std::vector<Share> shares;
  for (size_t e = 0; e < executors_.size(); ++e) {
    if (call->row_parts[e].empty()) continue;
    size_t rows = 0;
    for (const size_t i : call->row_parts[e]) rows += call->views[i].row_count;
    shares.push_back({executors_[e].get(), rows, [this, call, e] {
                        const int64_t taken_ns = NowNs();
                        ReadRows(call.get(), e);
                        const bool last = call->executors_left.fetch_sub(1, std::memory_order_acq_rel) == 1;
                        if (last) FinishPull(call.get(), taken_ns);
                      }});
  }
  if (shares.empty()) return FinishPull(call.get(), 0);
  call->executors_left.store(shares.size(), std::memory_order_relaxed);
  Spread(std::move(shares));
}

void Store::Impl::ReadRows(PullCall* call, size_t e) {
  std::call_once(call->rows_once, [call] { call->rows = BufferRef::New(call->row_values * sizeof(float)); });
  std::vector<EmbeddingTable::Wanted> wanted;
  wanted.reserve(call->row_parts[e].size());
  uint64_t values = 0;
  for (const size_t i : call->row_parts[e]) {
    const PartView& view = call->views[i];
    if (roles_.Of(view.shard) != ShardRole::kOwns) continue;  // FinishPull says so.
    Shard& shard = *shards_[view.shard];
    wanted.push_back(
        {shard.RowsOf(*view.entry->table), view.keys, view.row_count, call->rows->floats() + call->rows_at[i]});
    call->values.header.set_shard_versions(static_cast<int>(i), shard.version());
    values += view.values;
  }
  EmbeddingTable::Read(wanted, call->now_ms);
  copied_bytes_metric.Add(values * sizeof(float));
}

void Store::Impl::FinishPull(PullCall* call, int64_t taken_ns) {
  // What was read before a shard went counts; what may have been read after that does not.
  absl::Status status = CheckServing();
  for (const PartView& view : call->views) {
    if (status.ok() && roles_.Of(view.shard) != ShardRole::kOwns) status = NotOwned(view.shard);
  }
  if (!status.ok()) return call->done(std::move(status));
  for (size_t r = 0; r < call->row_runs.size(); ++r) {
    const uint64_t begin = call->row_runs[r].at;
    const uint64_t end = r + 1 < call->row_runs.size() ? call->row_runs[r + 1].at : call->row_values;
    call->values.payload[call->row_runs[r].slice] =
        SliceOf(call->rows, (end - begin) * sizeof(float), begin * sizeof(float));
  }
  uint64_t bytes = 0;
  for (const grpc::Slice& slice : call->values.payload) bytes += slice.size();
  const int64_t end_ns = NowNs();
  pull_metric.ObserveNs(end_ns - call->arrived_ns);
  if (taken_ns > 0) {
    pull_queue_metric.ObserveNs(taken_ns - call->arrived_ns);
    pull_read_metric.ObserveNs(end_ns - taken_ns);
  }
  pulls_.fetch_add(1, std::memory_order_relaxed);
  pull_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  call->done(std::move(call->values));
}

}  // namespace lodestone::server
