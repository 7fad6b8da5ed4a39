#include "server/store/store.h"

#include <algorithm>
#include <latch>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "server/shard/shard.h"
#include "server/store/table_entry.h"

namespace lodestone::server {
namespace {

v1::EnsureTablesResponse::Table DescriptionOf(const Table& table) {
  v1::EnsureTablesResponse::Table description;
  description.set_id(table.id());
  if (table.is_dense()) {
    description.set_block_elements(table.layout().block_elements);
    description.set_block_count(table.layout().block_count());
  }
  return description;
}

// What changes on their way to subscribers may keep: what the tables leave and calls do not take
// (server/process_options.h: CallMemoryBytes).
std::function<uint64_t()> BroadcastMemoryBytes(uint64_t memory_max_bytes, const Catalog* tables) {
  if (memory_max_bytes == 0) return [] { return UINT64_MAX / 2; };
  return [memory_max_bytes, tables] {
    const uint64_t left = memory_max_bytes - std::min(memory_max_bytes, tables->totals().second);
    return std::max(left / 4, memory_max_bytes / limits::kBroadcastMemoryParts);
  };
}

bool KeepsSettings(const v1::EnsureTablesRequest& request) {
  return request.keep_settings() || request.worker_incarnation() == 0;
}

}  // namespace

Store::Store(const Options& options)
    : time_(options.time),
      tables_({options.seed, options.memory_max_bytes, options.process_bytes, options.time}, &gate_, &shards_, &log_,
              &closer_),
      shards_(options.shards, options.executors, options.turn_ns, &gate_),
      log_(&gate_, &shards_),
      timer_(options.time),
      waits_(options.time, &timer_),
      closer_(options.time, &timer_, &gate_, &shards_, &log_, &tables_, &waits_),
      pushes_(options.time, &gate_, &shards_, &log_, &tables_, &sessions_, &closer_),
      pulls_({options.time, &gate_, &shards_, &log_, &tables_, &sessions_, &waits_, &closer_}, options.committed_reads),
      deltas_(
          &gate_, &shards_, &log_, &tables_, options.committed_reads,
          std::make_shared<BroadcastMemory>(BroadcastMemoryBytes(options.memory_max_bytes, &tables_), options.time)),
      replayer_(options.time, &gate_, &shards_, &log_, &tables_, &sessions_),
      sweeper_(&gate_, &shards_, &log_, &tables_, &sessions_),
      slow_work_(std::make_unique<Executor>(Executor::Mode::kThread)) {
  shards_.SetListener([this](ShardId shard) {
    if (!shards_.Owns(shard)) return waits_.Lose(shard);
    waits_.Tell(*shards_.Get(shard));
  });
  shards_.SetPrepare([this](Shard* shard) {
    shard->BeginOwned();
    tables_.PrepareShard(shard);
  });
  closer_.SetListener([this](const AppliedStep& applied) { pushes_.TellApplied(applied); });
}

Store::~Store() {
  EndSlowWork();
  timer_.Stop();
  waits_.Stop();
  shards_.executors().Stop();  // Their last messages may still append to the logs.
  log_.Close();                // Runs what waited to be durable, which may hand something to the background.
  shards_.executors().StopBackground();
}

void Store::Serve(std::vector<std::unique_ptr<ShardLog>> logs) {
  log_.Open(std::move(logs));
  shards_.PrepareOwned();
  gate_.Open();
}

void Store::OwnShards(const std::vector<ShardId>& shards) {
  shards_.Adopt(shards);
  Serve({});
}

absl::StatusOr<v1::EnsureTablesResponse> Store::EnsureTables(const v1::EnsureTablesRequest& request) {
  absl::StatusOr<v1::EnsureTablesResponse> result;
  std::latch ended(1);
  EnsureTables(request, [&](absl::StatusOr<v1::EnsureTablesResponse> response) {
    result = std::move(response);
    ended.count_down();
  });
  ended.wait();
  return result;
}

absl::Status Store::OpenSession(const v1::EnsureTablesRequest& request) {
  LODESTONE_RETURN_IF_ERROR(gate_.CheckReady());
  if (request.worker_incarnation() == 0) return absl::OkStatus();
  LODESTONE_RETURN_IF_ERROR(log_.health());
  return sessions_.Open(request.worker_incarnation(), time_->NowMs());
}

void Store::EnsureTables(v1::EnsureTablesRequest request, EnsureDone done) {
  absl::Status opened = OpenSession(request);
  if (opened.ok() && request.worker_incarnation() != 0) opened = order_fence_.Follow(request.orders());
  if (!opened.ok()) return done(std::move(opened));
  auto then = [this, request, done = std::move(done)](const absl::Status& logged) {
    if (!logged.ok()) return done(logged);
    auto found = FindTables(request);
    if (!found.ok()) return done(found.status());
    if (found->has_value()) return done(**std::move(found));
    if (!SubmitToThread([this, request, done] {
          if (ending()) return done(absl::UnavailableError("this ps ends"));
          done(MakeTables(request));
        })) {
      done(absl::UnavailableError("this ps ends"));
    }
  };
  if (request.worker_incarnation() == 0) return then(absl::OkStatus());
  v1::LogRecord record;
  record.set_session_opened(request.worker_incarnation());
  log_.AppendToOne(record, std::move(then));
}

void Store::SetTable(v1::SetTableRequest request, SetTableDone done) {
  if (absl::Status status = gate_.CheckReady(); !status.ok()) return done(std::move(status));
  const bool taken = SubmitToThread([this, request = std::move(request), done] {
    if (ending()) return done(absl::UnavailableError("this ps ends"));
    done(SetInTime(request));
  });
  if (!taken) done(absl::UnavailableError("this ps ends"));
}

absl::StatusOr<v1::SetTableResponse> Store::SetInTime(const v1::SetTableRequest& request) {
  if (request.orders() == 0) return tables_.Set(request);
  LODESTONE_RETURN_IF_ERROR(order_fence_.BeginChange(request.orders()));
  const absl::Cleanup end = [this] { order_fence_.EndChange(); };
  // Without a lease workers may train elsewhere, by what other ps have.
  LODESTONE_RETURN_IF_ERROR(gate_.CheckServing());
  return tables_.Set(request);
}

bool Store::SubmitToThread(std::function<void()> work) {
  MutexLock lock(&slow_work_mu_);
  if (ending_) return false;
  slow_work_->Submit(std::move(work));  // To its thread, so that it returns at once.
  return true;
}

void Store::EndSlowWork() {
  {
    MutexLock lock(&slow_work_mu_);
    ending_ = true;
  }
  slow_work_.reset();
}

bool Store::ending() const {
  MutexLock lock(&slow_work_mu_);
  return ending_;
}

absl::StatusOr<std::optional<v1::EnsureTablesResponse>> Store::FindTables(
    const v1::EnsureTablesRequest& request) const {
  v1::EnsureTablesResponse response;
  for (const v1::TableSpec& spec : request.tables()) {
    LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<const TableEntry> entry,
                               tables_.Find(spec, KeepsSettings(request)));
    if (entry == nullptr) return std::nullopt;
    *response.add_tables() = DescriptionOf(*entry->table);
  }
  Describe(request, &response);
  return response;
}

void Store::Describe(const v1::EnsureTablesRequest& request, v1::EnsureTablesResponse* response) const {
  for (const std::string& name : request.describe()) {
    std::optional<v1::TableSpec> spec = tables_.SpecOf(name);
    if (spec.has_value()) *response->add_described() = *std::move(spec);
  }
}

absl::StatusOr<v1::EnsureTablesResponse> Store::MakeTables(const v1::EnsureTablesRequest& request) {
  v1::EnsureTablesResponse response;
  for (const v1::TableSpec& spec : request.tables()) {
    if (ending()) return absl::UnavailableError("this ps ends");
    LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<const TableEntry> entry,
                               tables_.Ensure(spec, KeepsSettings(request)));
    *response.add_tables() = DescriptionOf(*entry->table);
  }
  Describe(request, &response);
  return response;
}

void Store::KeepSessions(std::span<const Incarnation> open) {
  const int64_t now_ms = time_->NowMs();
  for (const Incarnation one : open) sessions_.Contact(one, now_ms);
}

void Store::EndSessions(std::span<const Incarnation> workers) {
  for (const Incarnation worker : workers) NoteGiven(worker);
  SubmitToThread([this, ended = std::vector<Incarnation>(workers.begin(), workers.end())] {
    if (!ending()) sweeper_.EndSessions(ended);
  });
}

void Store::Tick() {
  tables_.budget().Sample();
  const int64_t now_ms = time_->NowMs();
  pushes_.SampleRate(now_ms);
  pulls_.SampleRate(now_ms);
  sweeper_.Tick(now_ms);
  closer_.Tick();
  tables_.UpdateShards();
  shards_.MeasureLoads(now_ms);
}

void Store::FillStatus(v1::StatusResponse* status) const {
  v1::ServerStatus* server = status->mutable_server();
  const std::vector<ShardId> owned = shards_.owned();
  server->set_shards_owned(static_cast<uint32_t>(owned.size()));
  server->set_shards_total(shards_.size());
  pushes_.FillStatus(server);
  pulls_.FillStatus(server);
  tables_.FillStatus(status);
  Version version_max = 0;
  for (const ShardId shard : owned) version_max = std::max(version_max, shards_.VersionOf(shard));
  for (v1::TableStatus& table : *status->mutable_tables()) table.set_version_max(version_max);
  shards_.executors().FillStatus(status);
  shards_.loads().FillStatus(status);
  const std::shared_ptr<const TableMap> map = tables_.tables();
  shards_.hot_keys().FillStatus(
      [&map](TableId id) {
        const auto entry = map->find(id);
        return entry == map->end() ? std::string() : entry->second->table->spec().name();
      },
      status);
  if (gate_.open()) log_.FillWaits(status);
  sessions_.FillStatus(time_->NowMs(), status);
  waits_.FillStatus(status);
}

}  // namespace lodestone::server
