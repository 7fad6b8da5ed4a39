#include "server/store/pull_path.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/planted_defect.h"
#include "common/base/status.h"
#include "common/telemetry/copied_bytes.h"
#include "common/telemetry/metrics.h"
#include "server/shard/part_view.h"
#include "server/shard/shard.h"
#include "server/shard/spread.h"
#include "server/store/buffer_slice.h"
#include "server/store/catalog.h"
#include "server/store/commit_log.h"
#include "server/store/request_view.h"
#include "server/store/serving_gate.h"
#include "server/store/sessions.h"
#include "server/store/shard_set.h"
#include "server/store/step_closer.h"
#include "server/store/step_waits.h"

namespace lodestone::server {
namespace {

HistogramMetric pull_duration_metric("lodestone_ps_pull_duration_seconds",
                                     "From a pull's arrival to its answer; refused ones do not count.");
constexpr char kPullStage[] = "lodestone_ps_pull_stage_duration_seconds";
constexpr char kPullStages[] =
    "What the time of a pull of rows went by, in the share of it that was done last: queue, until the executor took "
    "it; read, and, with cluster.reads durable, until what was read is durable.";
HistogramMetric pull_queue_metric(kPullStage, kPullStages, {{"stage", "queue"}});
HistogramMetric pull_read_metric(kPullStage, kPullStages, {{"stage", "read"}});

// Rows of adjacent parts in a pull's answer.
struct RowRun {
  size_t slice = 0;  // Of the payload.
  uint64_t at = 0;   // In the buffer of rows, in floats; they go on until the next run.
};

// Blocks of a part in a pull's answer.
struct BlockPart {
  size_t part = 0;
  size_t slice = 0;  // Of the payload: the first block's.
};

bool MayAnswer(const ShardSet& shards, ShardId shard) {
  return shards.Owns(shard) || Planted(Defect::kStaleOwnerAnswers);
}

}  // namespace

// A pull on its way through the executors; the one that is done last answers it.
struct PullPath::Call {
  int64_t arrived_ns = 0;
  int64_t now_ms = 0;
  v1::PullRequest header;
  RequestPayload payload;
  std::vector<PartView> views;
  bool has_steps = false;  // Of a table whose consistency is sync or tokens, one at least.
  bool in_turn = false;    // ReadsBlocksInTurn.
  Values values;
  // The rows of all parts lie in one buffer, which is made when the first is read, not while the message waits.
  std::once_flag rows_once;
  BufferRef rows;
  uint64_t row_values = 0;                     // Floats in it.
  std::vector<uint64_t> rows_at;               // By part: where its rows begin.
  std::vector<RowRun> row_runs;                // Ascending.
  std::vector<std::vector<size_t>> row_parts;  // By executor: indices of parts.
  // The same of blocks that are read in turn with the rows; others are read at once.
  std::vector<std::vector<BlockPart>> block_parts;
  std::atomic<size_t> executors_left{0};
  Mutex mu;
  // Why a share of it is no answer: its shard is not owned, or what was read may be taken back.
  absl::Status refused ABSL_GUARDED_BY(mu);
  Done done;
};

bool PullPath::ReadsBlocksInTurn(const Call& call) const {
  return call.header.one_cut() || call.has_steps || (committed_only_ && services_.log->HasLogOrFollowers());
}

absl::StatusOr<std::shared_ptr<PullPath::Call>> PullPath::Check(v1::PullRequest header, RequestPayload payload) {
  LODESTONE_RETURN_IF_ERROR(services_.gate->CheckReady());
  LODESTONE_RETURN_IF_ERROR(services_.gate->CheckServing());
  auto call = std::make_shared<Call>();
  call->arrived_ns = NowNs();
  call->now_ms = services_.time->NowMs();
  services_.sessions->Contact(header.worker_incarnation(), call->now_ms);
  call->header = std::move(header);
  call->payload = std::move(payload);
  const std::shared_ptr<const TableMap> map = services_.catalog->tables();
  LODESTONE_ASSIGN_OR_RETURN(call->views,
                             ViewParts(PartKind::kPull, call->header.parts(), call->payload.payload.bytes(),
                                       call->payload.key_bytes(), *map, services_.shards->roles()));
  for (const PartView& view : call->views) call->has_steps |= view.table->settings().collects_steps();
  call->in_turn = ReadsBlocksInTurn(*call);
  LODESTONE_RETURN_IF_ERROR(CheckQueues(*call));
  return call;
}

absl::Status PullPath::CheckQueues(const Call& call) const {
  std::vector<bool> needed(services_.shards->executors().size());
  for (const PartView& view : call.views) {
    if (!view.table->is_dense() || call.in_turn) needed[services_.shards->ExecutorOf(view.shard)] = true;
  }
  for (size_t e = 0; e < needed.size(); ++e) {
    if (needed[e]) LODESTONE_RETURN_IF_ERROR(services_.shards->executors().CheckQueue(e));
  }
  return absl::OkStatus();
}

void PullPath::Read(const std::shared_ptr<Call>& call, Done done) {
  call->arrived_ns = NowNs();
  call->done = std::move(done);
  Run(call);
}

size_t PullPath::AnswerBytes(const Call& call) {
  size_t values = 0;
  for (const PartView& view : call.views) values += view.values;
  return values * sizeof(float);
}

void PullPath::Pull(v1::PullRequest header, RequestPayload payload, Done done) {
  absl::StatusOr<std::shared_ptr<Call>> call = Check(std::move(header), std::move(payload));
  if (!call.ok()) return done(call.status());
  (*call)->done = std::move(done);
  Run(*call);
}

void PullPath::PrepareAnswer(Call* call) {
  v1::PullResponse& header = call->values.header;
  std::vector<grpc::Slice>& payload = call->values.payload;
  call->rows_at.resize(call->views.size());
  call->row_parts.resize(services_.shards->executors().size());
  call->block_parts.resize(services_.shards->executors().size());
  for (size_t i = 0; i < call->views.size(); ++i) {
    const PartView& view = call->views[i];
    v1::Part* out = nullptr;  // Null: the answer is brief.
    if (!call->header.brief()) {
      out = header.add_parts();
      out->set_shard(view.shard);
      out->set_table(view.table->id());
    }
    header.add_shard_versions(0);
    if (call->has_steps) header.add_steps(0);
    if (view.table->is_dense()) {
      const size_t slice = payload.size();
      payload.resize(slice + view.blocks.size());
      if (out != nullptr) {
        out->mutable_blocks()->Assign(view.blocks.begin(), view.blocks.end());
        out->mutable_block_versions()->Resize(static_cast<int>(view.blocks.size()), 0);
      }
      if (call->in_turn) {
        call->block_parts[services_.shards->ExecutorOf(view.shard)].push_back({i, slice});
      } else {
        ReadBlocksAtOnce(call, i, slice);
      }
    } else {
      if (out != nullptr) out->set_row_count(static_cast<uint32_t>(view.row_count));
      if (call->row_runs.empty() || call->row_runs.back().slice + 1 != payload.size()) {
        call->row_runs.push_back({payload.size(), call->row_values});
        payload.emplace_back();
      }
      call->rows_at[i] = call->row_values;
      call->row_values += view.values;
      call->row_parts[services_.shards->ExecutorOf(view.shard)].push_back(i);
    }
  }
}

void PullPath::Run(const std::shared_ptr<Call>& call) {
  PrepareAnswer(call.get());
  Executors& executors = services_.shards->executors();
  std::vector<Share> shares;
  for (size_t e = 0; e < executors.size(); ++e) {
    if (call->row_parts[e].empty() && call->block_parts[e].empty()) continue;
    size_t rows = 0;
    for (const size_t i : call->row_parts[e]) rows += call->views[i].row_count;
    shares.push_back({&executors[e], rows, [this, call, e] { RunShare(call, e); }, Executor::Order::kFree});
  }
  if (shares.empty()) return Finish(call.get(), 0);
  call->executors_left.store(shares.size(), std::memory_order_relaxed);
  Spread(std::move(shares));
}

void PullPath::RunShare(const std::shared_ptr<Call>& call, size_t e) {
  const int64_t taken_ns = NowNs();
  std::vector<ShardId> shards;
  for (const BlockPart& part : call->block_parts[e]) shards.push_back(call->views[part.part].shard);
  for (const size_t part : call->row_parts[e]) shards.push_back(call->views[part].shard);
  for (const ShardId shard : shards) {  // One that is not owned now may be owned again by Finish.
    if (!MayAnswer(*services_.shards, shard)) return EndShare(call.get(), taken_ns, NotOwned(shard));
  }
  if (call->has_steps && !HasSteps(call, e, taken_ns)) return;
  for (const BlockPart& part : call->block_parts[e]) ReadBlocks(call.get(), part.part, part.slice);
  ReadRows(call.get(), e);
  if (!committed_only_) return EndShare(call.get(), taken_ns, absl::OkStatus());
  std::vector<ReplicaSink::Position> read;
  for (const ShardId shard : shards) read.push_back({shard, services_.shards->VersionOf(shard)});
  services_.log->AwaitCommitted(
      e, read, [this, call, taken_ns](const absl::Status& status) { EndShare(call.get(), taken_ns, status); });
}

bool PullPath::HasSteps(const std::shared_ptr<Call>& call, size_t e, int64_t taken_ns) {
  std::vector<size_t> parts = call->row_parts[e];
  for (const BlockPart& part : call->block_parts[e]) parts.push_back(part.part);
  const uint64_t steps = call->header.steps_min();
  for (const size_t i : parts) {
    const PartView& view = call->views[i];
    Shard* const shard = services_.shards->Get(view.shard);
    const StepCollector* const collector = shard->steps().Of(view.table->id());
    if (collector == nullptr) continue;
    if (collector->is_sync() && collector->steps() < steps && shard->Holds(view.table->id())) {
      if (absl::Status status = services_.closer->Release(shard, view.table->id(), steps); !status.ok()) {
        EndShare(call.get(), taken_ns, status);
        return false;
      }
      if (collector->steps() < steps) {
        services_.waits->Await(view.shard, *view.table, steps, *collector,
                               [this, call, e, taken_ns](const absl::Status& status) {
                                 if (!status.ok()) return EndShare(call.get(), taken_ns, status);
                                 services_.shards->executors()[e].Submit([this, call, e] { RunShare(call, e); });
                               });
        return false;
      }
    }
    call->values.header.set_steps(static_cast<int>(i), collector->steps());
  }
  return true;
}

void PullPath::EndShare(Call* call, int64_t taken_ns, const absl::Status& status) {
  if (!status.ok()) {
    MutexLock lock(&call->mu);
    call->refused = status;
  }
  if (call->executors_left.fetch_sub(1, std::memory_order_acq_rel) == 1) Finish(call, taken_ns);
}

void PullPath::ReadBlocksAtOnce(Call* call, size_t part, size_t slice) {
  const ShardSet& shards = *services_.shards;
  const ShardId shard = call->views[part].shard;
  const uint64_t generation = shards.StateGeneration(shard);
  if (MayAnswer(shards, shard)) {
    ReadBlocks(call, part, slice);
    if (MayAnswer(shards, shard) && shards.StateGeneration(shard) == generation) return;
  }
  // What is here then may be half of another state. The shard may be owned again by Finish.
  MutexLock lock(&call->mu);
  call->refused = NotOwned(shard);
}

void PullPath::ReadBlocks(Call* call, size_t part, size_t slice) {
  const PartView& view = call->views[part];
  v1::PullResponse& header = call->values.header;
  Version newest = services_.shards->VersionOf(view.shard);
  for (size_t i = 0; i < view.blocks.size(); ++i) {
    DenseTable::BlockValue value = view.dense->Read(view.blocks[i]);
    if (!call->header.brief()) {
      header.mutable_parts(static_cast<int>(part))->set_block_versions(static_cast<int>(i), value.version);
    }
    newest = std::max(newest, value.version);  // A push may be applied meanwhile.
    const size_t bytes = value.values->size_bytes();
    call->values.payload[slice + i] = SliceOf(std::move(value.values), bytes);
  }
  header.set_shard_versions(static_cast<int>(part), newest);
  services_.shards->loads().CountBlockPull(view.shard, view.values * sizeof(float));
}

void PullPath::ReadRows(Call* call, size_t e) {
  if (call->row_parts[e].empty()) return;
  std::call_once(call->rows_once, [call] { call->rows = BufferRef::New(call->row_values * sizeof(float)); });
  std::vector<EmbeddingTable::Wanted> wanted;
  wanted.reserve(call->row_parts[e].size());
  uint64_t values = 0;
  for (const size_t i : call->row_parts[e]) {
    const PartView& view = call->views[i];
    Shard& shard = *services_.shards->Get(view.shard);
    wanted.push_back({shard.RowsOf(*view.table), view.keys, view.row_count, call->rows->floats() + call->rows_at[i]});
    call->values.header.set_shard_versions(static_cast<int>(i), shard.version());
    services_.shards->loads().CountPull(view.shard, view.values * sizeof(float));
    services_.shards->hot_keys().Count(view.shard, view.table->id(), view.keys, view.row_count);
    values += view.values;
  }
  EmbeddingTable::Read(wanted, call->now_ms);
  copied_bytes_metric.Add(values * sizeof(float));
}

void PullPath::Finish(Call* call, int64_t taken_ns) {
  // What was read before a shard went counts; what may have been read after that does not.
  absl::Status status = services_.gate->CheckServing();
  for (const PartView& view : call->views) {
    if (status.ok() && !MayAnswer(*services_.shards, view.shard)) status = NotOwned(view.shard);
  }
  if (status.ok()) {
    MutexLock lock(&call->mu);
    status = call->refused;
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
  pull_duration_metric.ObserveNs(end_ns - call->arrived_ns);
  if (taken_ns > 0) {
    pull_queue_metric.ObserveNs(taken_ns - call->arrived_ns);
    pull_read_metric.ObserveNs(end_ns - taken_ns);
  }
  pulls_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(bytes, std::memory_order_relaxed);
  call->done(std::move(call->values));
}

void PullPath::FillStatus(v1::ServerStatus* status) const {
  status->set_pulls(pulls_.load());
  status->set_pull_bytes(bytes_.load());
  status->set_pulls_per_second(rate_.PerSecond());
}

}  // namespace lodestone::server
