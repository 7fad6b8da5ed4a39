#include "server/store/store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "server/store/delta_builder.h"
#include "server/store/store_impl.h"

namespace lodestone::server {
namespace {

constexpr size_t kRateSamples = 5;  // Rates are measured over this many ticks.

}  // namespace

void Store::Impl::AdoptShards(const std::vector<ShardId>& shards) {
  MutexLock lock(&adopt_mu_);
  LODESTONE_CHECK(!ready_.load() && adopted_ == 0);
  for (const ShardId shard : shards) {
    LODESTONE_CHECK(shard < options_.shards);
    shards_[shard] = std::make_unique<Shard>(shard);
    executor_of_[shard] = adopted_++ % executors_.size();
    roles_.Set(shard, ShardRole::kOwns);
  }
}

void Store::Impl::Serve(std::vector<std::unique_ptr<ShardLog>> logs) {
  LODESTONE_CHECK(!ready_.load() && (logs.empty() || logs.size() == executors_.size()));
  logs_ = std::move(logs);
  ready_.store(true, std::memory_order_release);
}

absl::Status Store::Impl::AddToShards(TableEntry* entry) {
  // Before the first update that needs it, in each log and for each follower.
  v1::LogRecord record;
  *record.mutable_table() = entry->table->spec();
  LODESTONE_RETURN_IF_ERROR(LogForAll(record, 0, logs_.size()));
  const uint64_t now_ms = options_.time->NowMs();
  for (size_t e = 0; e < executors_.size(); ++e) {
    executors_[e]->SubmitAndWait([&] {
      for (const ShardId shard : adopted_shards()) {
        if (ExecutorOf(shard) != e) continue;
        const DenseTable* dense = shards_[shard]->AddTable(entry->table.get(), now_ms);
        if (dense != nullptr) entry->dense[shard] = dense;
      }
    });
  }
  return absl::OkStatus();
}

absl::Status Store::Impl::LogForAll(const v1::LogRecord& record, size_t first, size_t count) {
  LogWait wait(count);
  std::vector<ShardLog::Record> records(1);
  records[0].message = record;
  if (replicas_ != nullptr) replicas_->Append(records, nullptr);
  for (size_t i = first; i < first + count; ++i) logs_[i]->Append(records, nullptr, wait.done());
  return wait.Wait();
}

void Store::Impl::Stamp(Shard* shard, uint64_t now_ms, std::span<ShardLog::Record> records) {
  const uint64_t former = shard->term();
  const uint64_t term = std::max(former, own_terms_[shard->id()]);
  for (ShardLog::Record& record : records) {
    record.message.set_shard(shard->id());
    record.message.set_version(shard->version());
    record.message.set_now_ms(now_ms);
    record.message.set_term(term);
    if (term != former) record.message.set_previous_term(former);
  }
  if (term != former) shard->BeginTerm(term);
}

void Store::Impl::Tell(Shard* shard, uint64_t now_ms, std::vector<ShardLog::Record> records) {
  Stamp(shard, now_ms, records);
  if (replicas_ != nullptr) replicas_->Append(records, nullptr);
  ShardLog* const log = LogOf(ExecutorOf(shard->id()));
  if (log != nullptr) log->Append(records, nullptr, [](const absl::Status&) {});
}

absl::StatusOr<v1::EnsureTablesResponse> Store::Impl::EnsureTables(const v1::EnsureTablesRequest& request) {
  LODESTONE_RETURN_IF_ERROR(CheckReady());
  if (request.worker_incarnation() != 0) {
    LODESTONE_RETURN_IF_ERROR(CheckLogs());
    LODESTONE_RETURN_IF_ERROR(sessions_.Open(request.worker_incarnation(), options_.time->NowMs()));
    v1::LogRecord record;
    record.set_session_opened(request.worker_incarnation());
    LODESTONE_RETURN_IF_ERROR(LogForAll(record, 0, logs_.empty() ? 0 : 1));
  }
  v1::EnsureTablesResponse response;
  for (const v1::TableSpec& spec : request.tables()) {
    LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<const TableEntry> entry, EnsureTable(spec));
    v1::EnsureTablesResponse::Table* out = response.add_tables();
    out->set_id(entry->table->id());
    if (entry->table->is_dense()) {
      out->set_block_elements(entry->table->layout().block_elements);
      out->set_block_count(entry->table->layout().block_count());
    }
  }
  return response;
}

absl::StatusOr<Store::Subscription> Store::Impl::MakeSubscription(const v1::SubscribeRequest& request) const {
  LODESTONE_RETURN_IF_ERROR(CheckReady());
  const std::shared_ptr<const TableMap> map = tables();
  Subscription subscription;
  for (const auto& table : request.tables()) {
    if (!map->contains(table.table())) return UnknownTable(table.table());
    const auto same = [&](const Subscription::Table& other) { return other.id == table.table(); };
    if (std::any_of(subscription.tables.begin(), subscription.tables.end(), same)) {
      return absl::InvalidArgumentError(absl::StrCat("table id ", table.table(), " is subscribed to twice"));
    }
    subscription.tables.push_back({table.table(), table.rows()});
  }
  return subscription;
}

void Store::Impl::CollectChange(ShardId shard, const Subscription& subscription, std::optional<Held> from,
                                std::function<void(ShardChange)> done) {
  std::vector<const Table*> wanted;
  const std::shared_ptr<const TableMap> map = tables();
  for (const Subscription::Table& table : subscription.tables) {
    const Table* const found = map->find(table.id)->second->table.get();
    if (found->is_dense() || table.rows) wanted.push_back(found);
  }
  executors_[ExecutorOf(shard)]->Submit([this, shard, wanted = std::move(wanted), from, done = std::move(done)] {
    // What is here may be half of another owner's; the stream ends.
    if (roles_.Of(shard) != ShardRole::kOwns) return;
    const Shard& source = *shards_[shard];
    std::optional<Version> base;
    if (from.has_value() && source.Includes(from->term, from->version)) base = from->version;
    // Rows remember the low half of their version only.
    if (base.has_value() && source.version() - *base >= uint64_t{1} << 31) base.reset();
    auto snapshot = source.Collect(wanted, base.has_value() ? &*base : nullptr);
    if (!snapshot.has_value()) {
      base.reset();
      snapshot = source.Collect(wanted, nullptr);
    }
    const auto assemble = [base, term = source.term()](const Shard::Snapshot& what) {
      ShardChange change = AssembleChange(what, base, limits::kDeltaBytesTarget);
      change.term = term;
      return change;
    };
    if (snapshot->rows.empty()) return done(assemble(*snapshot));
    // Copying rows takes longer than the executor should be away.
    background_->Submit([snapshot = *std::move(snapshot), assemble, done] { done(assemble(snapshot)); });
  });
}

absl::StatusOr<std::shared_ptr<const TableEntry>> Store::Impl::EnsureTable(const v1::TableSpec& spec) {
  MutexLock lock(&adopt_mu_);
  return catalog_.Ensure(spec, adopted_shards(), [this](TableEntry* fresh) { return AddToShards(fresh); });
}

std::vector<ShardId> Store::Impl::owned_shards() const {
  return ready_.load(std::memory_order_acquire) ? roles_.AtLeast(ShardRole::kOwns) : std::vector<ShardId>();
}

std::optional<v1::Broadcast> Store::Impl::BroadcastOf(TableId table) const {
  const std::shared_ptr<const TableMap> map = tables();
  const auto found = map->find(table);
  if (found == map->end()) return std::nullopt;
  return found->second->table->spec().broadcast();
}

absl::StatusOr<std::string> Store::Impl::TableName(TableId table) const {
  LODESTONE_RETURN_IF_ERROR(CheckReady());
  const std::shared_ptr<const TableMap> map = tables();
  const auto found = map->find(table);
  return found == map->end() ? UnknownTable(table) : absl::StatusOr<std::string>(found->second->table->name());
}

absl::Status Store::Impl::UnknownTable(TableId table) const {
  if (!owned_shards().empty()) return absl::NotFoundError(absl::StrCat("unknown table id ", table));
  return absl::UnavailableError("this ps owns no shards now, and does not know the tables");
}

std::pair<uint64_t, uint64_t> Store::Impl::Totals() const {
  std::pair<uint64_t, uint64_t> totals;
  const std::shared_ptr<const TableMap> map = tables();
  for (const auto& [id, entry] : *map) {
    totals.first += entry->table->counters().rows.load(std::memory_order_relaxed);
    totals.second += entry->table->counters().bytes.load(std::memory_order_relaxed);
  }
  return totals;
}

void Store::Impl::Drain() {
  for (const auto& executor : executors_) executor->SubmitAndWait([] {});
  background_->SubmitAndWait([] {});
}

void Store::Impl::Tick() {
  const int64_t now_ms = options_.time->NowMs();
  {
    MutexLock lock(&status_mu_);
    rate_samples_.push_back({now_ms, pushes_.load(), pulls_.load()});
    if (rate_samples_.size() > kRateSamples) rate_samples_.pop_front();
  }
  if (!ready_.load(std::memory_order_acquire)) return;
  const std::vector<Incarnation> forgotten = sessions_.ForgetIdle(now_ms);
  const std::shared_ptr<const TableMap> map = tables();
  bool expires = false;
  for (const auto& [id, entry] : *map) expires |= entry->table->spec().embedding().eviction().ttl_ms() > 0;
  if (forgotten.empty() && !expires) return;
  for (const Incarnation worker : forgotten) {
    std::vector<ShardLog::Record> records(1);
    records[0].message.set_session_forgotten(worker);
    if (replicas_ != nullptr) replicas_->Append(records, nullptr);
    if (!logs_.empty()) logs_[0]->Append(records, nullptr, [](const absl::Status&) {});
  }
  for (const ShardId shard : owned_shards()) {
    executors_[ExecutorOf(shard)]->Submit([this, shard, forgotten, now_ms] { Sweep(shard, forgotten, now_ms); });
  }
}

void Store::Impl::Sweep(ShardId shard, const std::vector<Incarnation>& forgotten, int64_t now_ms) {
  if (roles_.Of(shard) != ShardRole::kOwns) return;
  for (const Incarnation worker : forgotten) shards_[shard]->ForgetWorker(worker);
  if (!CheckLogs().ok() || !CheckServing().ok()) return;  // The next sweep will find the same rows.
  Evictions evictions;
  if (!shards_[shard]->EvictExpired(now_ms, &evictions) || !HasHearers()) return;
  std::vector<ShardLog::Record> records(1);
  v1::LoggedExpiry& expiry = *records[0].message.mutable_expiry();
  for (const EvictedKeys& group : evictions.groups()) *expiry.add_evicted() = ToProto(group);
  Tell(shards_[shard].get(), now_ms, std::move(records));
}

void Store::Impl::FillStatus(v1::StatusResponse* status) const {
  v1::ServerStatus* server = status->mutable_server();
  const std::vector<ShardId> owned = owned_shards();
  server->set_shards_owned(static_cast<uint32_t>(owned.size()));
  server->set_shards_total(options_.shards);
  server->set_pushes(pushes_.load());
  server->set_pulls(pulls_.load());
  server->set_pushes_duplicate(pushes_duplicate_.load());
  server->set_pushes_refused(pushes_refused_.load());
  server->set_push_bytes(push_bytes_.load());
  server->set_pull_bytes(pull_bytes_.load());
  {
    MutexLock lock(&status_mu_);
    server->set_last_refusal(last_refusal_);
    if (rate_samples_.size() >= 2) {
      const RateSample& first = rate_samples_.front();
      const RateSample& last = rate_samples_.back();
      const double seconds = std::max<int64_t>(1, last.now_ms - first.now_ms) / 1000.0;
      server->set_pushes_per_second(static_cast<double>(last.pushes - first.pushes) / seconds);
      server->set_pulls_per_second(static_cast<double>(last.pulls - first.pulls) / seconds);
    }
  }
  Version version_max = 0;
  for (const ShardId shard : owned) version_max = std::max(version_max, VersionOf(shard));
  catalog_.FillStatus(status);
  for (v1::TableStatus& table : *status->mutable_tables()) table.set_version_max(version_max);
  for (const auto& executor : executors_) {
    const Executor::Stats stats = executor->stats();
    v1::ExecutorStatus* out = status->add_executors();
    out->set_queue_length(static_cast<uint32_t>(stats.queue_length));
    out->set_executed(stats.executed);
    out->set_queue_length_max(static_cast<uint32_t>(stats.queue_length_max));
  }
  sessions_.FillStatus(options_.time->NowMs(), status);
}

Store::Store(const Options& options) : impl_(std::make_unique<Impl>(options)) {}
Store::~Store() = default;

void Store::OwnShards(const std::vector<ShardId>& shards) {
  impl_->AdoptShards(shards);
  impl_->Serve({});
}
void Store::AdoptShards(const std::vector<ShardId>& shards) { impl_->AdoptShards(shards); }
absl::Status Store::AddTable(const v1::TableSpec& spec) { return impl_->AddTable(spec); }
void Store::UseShard(ShardId shard, const std::function<void(Shard*)>& use) { impl_->UseShard(shard, use); }
absl::StatusOr<bool> Store::Replay(const v1::LogRecord& record, ByteView payload) {
  return impl_->Replay(record, payload);
}
void Store::RestoreSessions(std::span<const Incarnation> open, Incarnation forgotten_max) {
  impl_->RestoreSessions(open, forgotten_max);
}
void Store::Serve(std::vector<std::unique_ptr<ShardLog>> logs) { impl_->Serve(std::move(logs)); }

bool Store::ReadsAfterAnswers() const { return impl_->ReadsAfterAnswers(); }
absl::StatusOr<Version> Store::RollBack(ShardId shard, std::shared_ptr<const TablePart> part) {
  return impl_->RollBack(shard, std::move(part));
}
size_t Store::executors() const { return impl_->executors(); }
std::vector<ShardId> Store::adopted_shards() const { return impl_->adopted_shards(); }
std::vector<ShardId> Store::held_shards() const { return impl_->held_shards(); }
ShardRole Store::RoleOf(ShardId shard) const { return impl_->RoleOf(shard); }
void Store::SetReplicas(ReplicaSink* sink, std::function<absl::Status()> may_serve) {
  impl_->SetReplicas(sink, std::move(may_serve));
}
void Store::SetTerms(const std::vector<uint64_t>& terms) { impl_->SetTerms(terms); }
uint64_t Store::OwnTermOf(ShardId shard) const { return impl_->OwnTermOf(shard); }
absl::Status Store::Follow(ShardId shard) { return impl_->Follow(shard); }
void Store::ClearState(ShardId shard) { impl_->ClearState(shard); }
absl::Status Store::TakeState(ShardId shard, const v1::CheckpointRecord& record, std::span<const uint8_t> payload) {
  return impl_->TakeState(shard, record, payload);
}
absl::Status Store::FinishState(ShardId shard, Version version, uint64_t term) {
  return impl_->FinishState(shard, version, term);
}
uint64_t Store::StatesOf(ShardId shard) const { return impl_->StatesOf(shard); }
absl::Status Store::ReplayFollowed(const v1::LogRecord& record, const Payload& payload) {
  return impl_->ReplayFollowed(record, payload);
}
void Store::KnowSessions(std::span<const Incarnation> open, Incarnation forgotten_max) {
  impl_->KnowSessions(open, forgotten_max);
}
void Store::Own(ShardId shard, uint64_t term) { impl_->Own(shard, term); }
void Store::Disown(ShardId shard) { impl_->Disown(shard); }
std::vector<v1::TableSpec> Store::table_specs() const { return impl_->table_specs(); }
Sessions::Known Store::sessions() const { return impl_->sessions(); }
std::vector<uint64_t> Store::RollLogs() { return impl_->RollLogs(); }
void Store::DropLogsBefore(std::span<const uint64_t> marks) { impl_->DropLogsBefore(marks); }
absl::Status Store::log_health() const { return impl_->CheckLogs(); }
void Store::FillLogStatus(v1::StorageStatus* status) const { impl_->FillLogStatus(status); }
absl::StatusOr<v1::EnsureTablesResponse> Store::EnsureTables(const v1::EnsureTablesRequest& request) {
  return impl_->EnsureTables(request);
}
absl::StatusOr<size_t> Store::PushPayloadBytes(const v1::PushRequest& header, size_t* keys) const {
  return impl_->PushPayloadBytes(header, keys);
}
void Store::Push(v1::PushRequest header, Numbers numbers, PushDone done) {
  impl_->Push(std::move(header), std::move(numbers), std::move(done));
}
void Store::Pull(v1::PullRequest header, Numbers numbers, PullDone done) {
  impl_->Pull(std::move(header), std::move(numbers), std::move(done));
}
absl::StatusOr<Store::Subscription> Store::MakeSubscription(const v1::SubscribeRequest& request) const {
  return impl_->MakeSubscription(request);
}
void Store::CollectChange(ShardId shard, const Subscription& subscription, std::optional<Held> from,
                          std::function<void(ShardChange)> done) {
  impl_->CollectChange(shard, subscription, from, std::move(done));
}
std::vector<ShardId> Store::owned_shards() const { return impl_->owned_shards(); }
Version Store::VersionOf(ShardId shard) const { return impl_->VersionOf(shard); }
absl::StatusOr<std::string> Store::TableName(TableId table) const { return impl_->TableName(table); }
std::pair<uint64_t, uint64_t> Store::Totals() const { return impl_->Totals(); }
std::optional<v1::Broadcast> Store::BroadcastOf(TableId table) const { return impl_->BroadcastOf(table); }
void Store::SetBroadcastListener(std::function<void(TableId)> listener) {
  impl_->SetBroadcastListener(std::move(listener));
}
void Store::SetRefusalListener(std::function<void(Incarnation, const absl::Status&)> listener) {
  impl_->SetRefusalListener(std::move(listener));
}
void Store::Drain() { impl_->Drain(); }
void Store::Tick() { impl_->Tick(); }
void Store::FillStatus(v1::StatusResponse* status) const { impl_->FillStatus(status); }

}  // namespace lodestone::server
