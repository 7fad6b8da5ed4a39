#include "server/store.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/limits.h"
#include "common/mutex.h"
#include "common/status.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/change.h"
#include "server/parts.h"
#include "server/sessions.h"
#include "server/shard/executor.h"
#include "server/shard/shard.h"

namespace lodestone {
namespace {

constexpr size_t kRateSamples = 5;  // Rates are measured over this many ticks.

// The specification says something else than what exists: which fields.
absl::Status SpecConflict(const v1::TableSpec& existing, const v1::TableSpec& wanted) {
  std::string differences;
  google::protobuf::util::MessageDifferencer differencer;
  differencer.set_message_field_comparison(google::protobuf::util::MessageDifferencer::EQUIVALENT);
  differencer.ReportDifferencesToString(&differences);
  if (differencer.Compare(existing, wanted)) return absl::OkStatus();
  return absl::AlreadyExistsError(
      absl::StrCat("table `", wanted.name(), "` exists with another specification: ", differences));
}

}  // namespace

class Store::Impl {
 public:
  explicit Impl(const Options& options) : options_(options) {
    for (uint32_t i = 0; i < std::max(1u, options.executors); ++i) {
      executors_.push_back(std::make_unique<Executor>());
    }
    shards_.resize(options.shards);
    owned_.resize(options.shards, false);
  }

  ~Impl() {
    executors_.clear();  // Their last messages may still hand something to the background.
    background_.reset();
  }

  void OwnShards(const std::vector<ShardId>& shards);
  absl::StatusOr<v1::EnsureTablesResponse> EnsureTables(const v1::EnsureTablesRequest& request);
  absl::StatusOr<size_t> PushPayloadBytes(const v1::PushRequest& header) const;
  void Push(v1::PushRequest header, Payload payload, PushDone done);
  void Pull(v1::PullRequest header, Payload payload, PullDone done);
  absl::StatusOr<Subscription> MakeSubscription(const v1::SubscribeRequest& request) const;
  void CollectChange(ShardId shard, const Subscription& subscription, std::optional<Version> from,
                     std::function<void(ShardChange)> done);
  std::vector<ShardId> owned_shards() const;
  Version VersionOf(ShardId shard) const { return shards_[shard]->version(); }
  std::optional<v1::Broadcast> BroadcastOf(TableId table) const;
  void SetBroadcastListener(std::function<void(TableId)> listener) { broadcast_listener_ = std::move(listener); }
  void Tick();
  void FillStatus(v1::StatusResponse* status) const;

 private:
  // One shard's share of a push.
  struct ShardPush {
    Shard* shard = nullptr;
    std::vector<Shard::PushPart> parts;
    absl::StatusOr<Shard::PushResult> result = Shard::PushResult{};
  };
  // A push on its way through the executors; whoever finishes last answers.
  struct PushCall {
    v1::PushRequest header;
    Payload payload;
    std::vector<PartView> views;
    std::vector<ShardPush> shards;
    std::vector<Table*> tables;  // Distinct.
    std::atomic<size_t> executors_left{0};
    PushDone done;
  };
  struct PullCall {
    v1::PullRequest header;
    Payload payload;
    std::vector<PartView> views;
    Values values;
    std::vector<BufferRef> rows;  // By part; null for dense ones.
    std::vector<std::vector<size_t>> row_parts;  // By executor: indices of parts.
    std::atomic<size_t> executors_left{0};
    PullDone done;
  };

  std::shared_ptr<const TableMap> tables() const {
    MutexLock lock(&tables_mu_);
    return tables_;
  }
  size_t ExecutorOf(ShardId shard) const { return executor_of_[shard]; }
  absl::Status CheckReady() const {
    if (ready_.load(std::memory_order_acquire)) return absl::OkStatus();
    return absl::UnavailableError("this ps owns no shards yet: it waits for the other servers of the cluster");
  }
  // RESOURCE_EXHAUSTED if an executor has too much to do.
  absl::Status CheckQueues() const;
  absl::Status CheckMemory(const Table& table, uint64_t more_bytes) const;
  uint64_t TableBytes() const;

  absl::StatusOr<std::shared_ptr<TableEntry>> CreateTable(const v1::TableSpec& spec);
  absl::Status PreparePush(PushCall* call);
  void RunPush(const std::shared_ptr<PushCall>& call);
  void FinishPush(PushCall* call);
  void Refuse(const absl::Status& status, Incarnation worker);
  void RunPull(const std::shared_ptr<PullCall>& call);
  void FinishPull(PullCall* call);

  // Constant after construction.
  const Options options_;
  std::function<void(TableId)> broadcast_listener_;

  // Constant once ready_.
  std::vector<std::unique_ptr<Shard>> shards_;  // By id; null where not owned. Each is owned by its executor.
  std::vector<bool> owned_;
  std::vector<size_t> executor_of_;
  std::atomic<bool> ready_{false};

  // Synchronise themselves.
  std::vector<std::unique_ptr<Executor>> executors_;
  std::unique_ptr<Executor> background_ = std::make_unique<Executor>(Executor::Mode::kThread);
  Sessions sessions_;
  std::atomic<uint64_t> pushes_{0};
  std::atomic<uint64_t> pushes_duplicate_{0};
  std::atomic<uint64_t> pushes_refused_{0};
  std::atomic<uint64_t> pulls_{0};
  std::atomic<uint64_t> push_bytes_{0};
  std::atomic<uint64_t> pull_bytes_{0};

  Mutex create_mu_;  // Held while tables are made; taken before tables_mu_.
  mutable Mutex tables_mu_;
  std::shared_ptr<const TableMap> tables_ ABSL_GUARDED_BY(tables_mu_) = std::make_shared<TableMap>();

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

void Store::Impl::OwnShards(const std::vector<ShardId>& shards) {
  LODESTONE_CHECK(!ready_.load());
  executor_of_.assign(options_.shards, 0);
  for (size_t i = 0; i < shards.size(); ++i) {
    LODESTONE_CHECK(shards[i] < options_.shards);
    shards_[shards[i]] = std::make_unique<Shard>(shards[i]);
    owned_[shards[i]] = true;
    executor_of_[shards[i]] = i % executors_.size();
  }
  ready_.store(true, std::memory_order_release);
}

absl::StatusOr<std::shared_ptr<TableEntry>> Store::Impl::CreateTable(const v1::TableSpec& spec) {
  auto table = Table::Create(spec, options_.seed, options_.shards);
  if (!table.ok()) return table.status();
  auto entry = std::make_shared<TableEntry>();
  entry->table = *std::move(table);
  uint64_t bytes = 0;
  if (entry->table->is_dense()) {
    entry->dense.resize(options_.shards, nullptr);
    for (const ShardId shard : owned_shards()) bytes += DenseTable::BytesNeeded(*entry->table, shard);
    LODESTONE_RETURN_IF_ERROR(CheckMemory(*entry->table, bytes));
  }
  const uint64_t now_ms = options_.time->NowMs();
  for (size_t e = 0; e < executors_.size(); ++e) {
    executors_[e]->SubmitAndWait([&] {
      for (const ShardId shard : owned_shards()) {
        if (ExecutorOf(shard) != e) continue;
        const DenseTable* dense = shards_[shard]->AddTable(entry->table.get(), now_ms);
        if (dense != nullptr) entry->dense[shard] = dense;
      }
    });
  }
  entry->table->counters().bytes.fetch_add(bytes, std::memory_order_relaxed);
  return entry;
}

absl::StatusOr<v1::EnsureTablesResponse> Store::Impl::EnsureTables(const v1::EnsureTablesRequest& request) {
  LODESTONE_RETURN_IF_ERROR(CheckReady());
  if (request.worker_incarnation() != 0) {
    LODESTONE_RETURN_IF_ERROR(sessions_.Open(request.worker_incarnation(), options_.time->NowMs()));
  }
  v1::EnsureTablesResponse response;
  MutexLock create_lock(&create_mu_);
  for (const v1::TableSpec& spec : request.tables()) {
    std::shared_ptr<const TableMap> map = tables();
    std::shared_ptr<TableEntry> entry;
    const auto found = map->find(TableIdOf(spec.name()));
    if (found != map->end()) {
      entry = found->second;
      if (entry->table->name() != spec.name()) {
        return absl::AlreadyExistsError(absl::StrCat("the name `", spec.name(), "` hashes to the same id as table `",
                                                     entry->table->name(), "`; choose another name"));
      }
      LODESTONE_RETURN_IF_ERROR(SpecConflict(entry->table->spec(), spec));
    } else {
      if (map->size() >= limits::kTablesMax) {
        return absl::ResourceExhaustedError(absl::StrCat("this ps has ", map->size(), " tables, its limit"));
      }
      LODESTONE_ASSIGN_OR_RETURN(entry, CreateTable(spec));
      auto extended = std::make_shared<TableMap>(*map);
      extended->emplace(entry->table->id(), entry);
      MutexLock lock(&tables_mu_);
      tables_ = std::move(extended);
    }
    v1::EnsureTablesResponse::Table* out = response.add_tables();
    out->set_id(entry->table->id());
    if (entry->table->is_dense()) {
      out->set_block_elements(entry->table->layout().block_elements);
      out->set_block_count(entry->table->layout().block_count());
    }
  }
  return response;
}

absl::Status Store::Impl::CheckQueues() const {
  for (const auto& executor : executors_) {
    const size_t length = executor->queue_length();
    if (length >= limits::kExecutorQueueMax) {
      return absl::ResourceExhaustedError(absl::StrCat("an executor of this ps has ", length,
                                                       " messages waiting, its limit; try again later"));
    }
  }
  return absl::OkStatus();
}

uint64_t Store::Impl::TableBytes() const {
  uint64_t bytes = 0;
  for (const auto& [id, entry] : *tables()) bytes += entry->table->counters().bytes.load(std::memory_order_relaxed);
  return bytes;
}

absl::Status Store::Impl::CheckMemory(const Table& table, uint64_t more_bytes) const {
  const uint64_t table_max = table.spec().memory_max_bytes();
  const uint64_t table_bytes = table.counters().bytes.load(std::memory_order_relaxed);
  if (table_max > 0 && table_bytes + more_bytes > table_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("table `", table.name(), "` takes ", table_bytes, " bytes on this ps and needs ", more_bytes,
                     " more, over its memory_max_bytes of ", table_max,
                     "; raise that, or bound the rows by eviction.rows_max"));
  }
  if (options_.memory_max_bytes == 0) return absl::OkStatus();
  const uint64_t total = TableBytes();
  if (total + more_bytes <= options_.memory_max_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("the tables of this ps take ", total, " bytes and table `",
                                                   table.name(), "` needs ", more_bytes,
                                                   " more, over server.memory_max_bytes of ",
                                                   options_.memory_max_bytes));
}

absl::StatusOr<size_t> Store::Impl::PushPayloadBytes(const v1::PushRequest& header) const {
  return lodestone::PushPayloadBytes(header.parts(), *tables());
}

absl::Status Store::Impl::PreparePush(PushCall* call) {
  LODESTONE_RETURN_IF_ERROR(CheckReady());
  const v1::PushRequest& header = call->header;
  LODESTONE_RETURN_IF_ERROR(sessions_.Push(header.worker_incarnation(), header.sequence(), header.clock(),
                                           options_.time->NowMs()));
  LODESTONE_RETURN_IF_ERROR(CheckQueues());
  const std::shared_ptr<const TableMap> map = tables();
  LODESTONE_ASSIGN_OR_RETURN(call->views, ViewParts(PartKind::kPush, header.parts(), call->payload.data(),
                                                    call->payload.size(), *map, owned_));
  LODESTONE_RETURN_IF_ERROR(CheckFinite(call->views));
  absl::flat_hash_map<ShardId, size_t> group_of;
  for (const PartView& view : call->views) {
    Table* const table = view.entry->table.get();
    if (std::find(call->tables.begin(), call->tables.end(), table) == call->tables.end()) {
      if (!table->is_dense()) LODESTONE_RETURN_IF_ERROR(CheckMemory(*table, 0));
      call->tables.push_back(table);
    }
    const auto [group, inserted] = group_of.try_emplace(view.shard, call->shards.size());
    if (inserted) {
      call->shards.emplace_back();
      call->shards.back().shard = shards_[view.shard].get();
    }
    call->shards[group->second].parts.push_back({table, view.blocks, view.keys, view.row_count, view.gradients});
    table->counters().updates.fetch_add(1, std::memory_order_relaxed);
  }
  return absl::OkStatus();
}

void Store::Impl::Refuse(const absl::Status& status, Incarnation worker) {
  pushes_refused_.fetch_add(1, std::memory_order_relaxed);
  sessions_.PushRefused(worker);
  MutexLock lock(&status_mu_);
  last_refusal_ = absl::StrCat("worker incarnation ", worker, ": ", status.ToString());
}

void Store::Impl::Push(v1::PushRequest header, Payload payload, PushDone done) {
  auto call = std::make_shared<PushCall>();
  call->header = std::move(header);
  call->payload = std::move(payload);
  call->done = std::move(done);
  if (absl::Status status = PreparePush(call.get()); !status.ok()) {
    Refuse(status, call->header.worker_incarnation());
    call->done(std::move(status));
    return;
  }
  push_bytes_.fetch_add(call->payload.size(), std::memory_order_relaxed);
  RunPush(call);
}

void Store::Impl::RunPush(const std::shared_ptr<PushCall>& call) {
  std::vector<std::vector<ShardPush*>> by_executor(executors_.size());
  for (ShardPush& push : call->shards) by_executor[ExecutorOf(push.shard->id())].push_back(&push);
  const size_t used = std::count_if(by_executor.begin(), by_executor.end(), [](const auto& p) { return !p.empty(); });
  if (used == 0) return FinishPush(call.get());
  call->executors_left.store(used, std::memory_order_relaxed);
  const uint64_t now_ms = options_.time->NowMs();
  for (size_t e = 0; e < executors_.size(); ++e) {
    if (by_executor[e].empty()) continue;
    executors_[e]->Submit([this, call, now_ms, pushes = std::move(by_executor[e])] {
      for (ShardPush* push : pushes) {
        push->result = push->shard->Push(call->header.worker_incarnation(), call->header.sequence(), push->parts,
                                         now_ms);
      }
      if (call->executors_left.fetch_sub(1, std::memory_order_acq_rel) == 1) FinishPush(call.get());
    });
  }
}

void Store::Impl::FinishPush(PushCall* call) {
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
  if (applied) {
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

void Store::Impl::Pull(v1::PullRequest header, Payload payload, PullDone done) {
  if (absl::Status status = CheckReady(); !status.ok()) return done(std::move(status));
  if (absl::Status status = CheckQueues(); !status.ok()) return done(std::move(status));
  sessions_.Contact(header.worker_incarnation(), options_.time->NowMs());
  auto call = std::make_shared<PullCall>();
  call->header = std::move(header);
  call->payload = std::move(payload);
  call->done = std::move(done);
  const std::shared_ptr<const TableMap> map = tables();
  auto views = ViewParts(PartKind::kPull, call->header.parts(), call->payload.data(), call->payload.size(), *map,
                         owned_);
  if (!views.ok()) return call->done(views.status());
  call->views = *std::move(views);
  RunPull(call);
}

void Store::Impl::RunPull(const std::shared_ptr<PullCall>& call) {
  v1::PullResponse& header = call->values.header;
  call->rows.resize(call->views.size());
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
        call->values.payload.push_back(SliceOf(std::move(value.values), bytes));
      }
    } else {
      out->set_row_count(static_cast<uint32_t>(view.row_count));
      BufferRef rows = BufferRef::New(view.values * sizeof(float));
      call->values.payload.push_back(SliceOf(rows, view.values * sizeof(float)));
      call->rows[i] = std::move(rows);
      call->row_parts[ExecutorOf(view.shard)].push_back(i);
    }
  }
  const size_t used = std::count_if(call->row_parts.begin(), call->row_parts.end(),
                                    [](const auto& parts) { return !parts.empty(); });
  if (used == 0) return FinishPull(call.get());
  call->executors_left.store(used, std::memory_order_relaxed);
  const uint64_t now_ms = options_.time->NowMs();
  for (size_t e = 0; e < executors_.size(); ++e) {
    if (call->row_parts[e].empty()) continue;
    executors_[e]->Submit([this, call, now_ms, e] {
      for (const size_t i : call->row_parts[e]) {
        const PartView& view = call->views[i];
        const Version version = shards_[view.shard]->Read(*view.entry->table, view.keys, view.row_count, now_ms,
                                                          call->rows[i]->floats());
        call->values.header.set_shard_versions(static_cast<int>(i), version);
      }
      if (call->executors_left.fetch_sub(1, std::memory_order_acq_rel) == 1) FinishPull(call.get());
    });
  }
}

void Store::Impl::FinishPull(PullCall* call) {
  uint64_t bytes = 0;
  for (const grpc::Slice& slice : call->values.payload) bytes += slice.size();
  pulls_.fetch_add(1, std::memory_order_relaxed);
  pull_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  call->done(std::move(call->values));
}

absl::StatusOr<Store::Subscription> Store::Impl::MakeSubscription(const v1::SubscribeRequest& request) const {
  LODESTONE_RETURN_IF_ERROR(CheckReady());
  const std::shared_ptr<const TableMap> map = tables();
  Subscription subscription;
  for (const auto& table : request.tables()) {
    if (!map->contains(table.table())) {
      return absl::NotFoundError(absl::StrCat("unknown table id ", table.table()));
    }
    const auto same = [&](const Subscription::Table& other) { return other.id == table.table(); };
    if (std::any_of(subscription.tables.begin(), subscription.tables.end(), same)) {
      return absl::InvalidArgumentError(absl::StrCat("table id ", table.table(), " is subscribed to twice"));
    }
    subscription.tables.push_back({table.table(), table.rows()});
  }
  return subscription;
}

void Store::Impl::CollectChange(ShardId shard, const Subscription& subscription, std::optional<Version> from,
                                std::function<void(ShardChange)> done) {
  std::vector<const Table*> wanted;
  const std::shared_ptr<const TableMap> map = tables();
  for (const Subscription::Table& table : subscription.tables) {
    const Table* const found = map->find(table.id)->second->table.get();
    if (found->is_dense() || table.rows) wanted.push_back(found);
  }
  executors_[ExecutorOf(shard)]->Submit([this, shard, wanted = std::move(wanted), from, done = std::move(done)] {
    const Shard& source = *shards_[shard];
    std::optional<Version> base = from;
    // Rows remember the low half of their version only.
    if (base.has_value() && source.version() - *base >= uint64_t{1} << 31) base.reset();
    auto snapshot = source.Collect(wanted, base.has_value() ? &*base : nullptr);
    if (!snapshot.has_value()) {
      base.reset();
      snapshot = source.Collect(wanted, nullptr);
    }
    if (snapshot->rows.empty()) return done(AssembleChange(*snapshot, base, limits::kDeltaBytesTarget));
    // Copying rows takes longer than the executor should be away.
    background_->Submit([snapshot = *std::move(snapshot), base, done] {
      done(AssembleChange(snapshot, base, limits::kDeltaBytesTarget));
    });
  });
}

std::vector<ShardId> Store::Impl::owned_shards() const {
  std::vector<ShardId> shards;
  if (!ready_.load(std::memory_order_acquire)) return shards;
  for (ShardId shard = 0; shard < owned_.size(); ++shard) {
    if (owned_[shard]) shards.push_back(shard);
  }
  return shards;
}

std::optional<v1::Broadcast> Store::Impl::BroadcastOf(TableId table) const {
  const std::shared_ptr<const TableMap> map = tables();
  const auto found = map->find(table);
  if (found == map->end()) return std::nullopt;
  return found->second->table->spec().broadcast();
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
  bool expires = false;
  for (const auto& [id, entry] : *tables()) expires |= entry->table->spec().embedding().eviction().ttl_ms() > 0;
  if (forgotten.empty() && !expires) return;
  for (const ShardId shard : owned_shards()) {
    executors_[ExecutorOf(shard)]->Submit([this, shard, forgotten, now_ms] {
      for (const Incarnation worker : forgotten) shards_[shard]->ForgetWorker(worker);
      shards_[shard]->EvictExpired(now_ms);
    });
  }
}

void Store::Impl::FillStatus(v1::StatusResponse* status) const {
  v1::ServerStatus* server = status->mutable_server();
  server->set_table_bytes(TableBytes());
  server->set_table_bytes_max(options_.memory_max_bytes);
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
  const std::shared_ptr<const TableMap> map = tables();
  for (const auto& [id, entry] : *map) {
    const Table& table = *entry->table;
    const Table::Counters& counters = table.counters();
    v1::TableStatus* out = status->add_tables();
    out->set_name(table.name());
    out->set_id(table.id());
    out->set_shape(table.ShapeText());
    out->set_optimizer(table.optimizer().name());
    out->set_blocks(counters.blocks.load());
    out->set_rows(counters.rows.load());
    out->set_bytes(counters.bytes.load());
    out->set_bytes_max(table.spec().memory_max_bytes());
    out->set_updates(counters.updates.load());
    out->set_evicted(counters.evicted.load());
    out->set_not_admitted(counters.not_admitted.load());
    out->set_version_max(version_max);
  }
  std::sort(status->mutable_tables()->begin(), status->mutable_tables()->end(),
            [](const auto& a, const auto& b) { return a.name() < b.name(); });
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

void Store::OwnShards(const std::vector<ShardId>& shards) { impl_->OwnShards(shards); }
absl::StatusOr<v1::EnsureTablesResponse> Store::EnsureTables(const v1::EnsureTablesRequest& request) {
  return impl_->EnsureTables(request);
}
absl::StatusOr<size_t> Store::PushPayloadBytes(const v1::PushRequest& header) const {
  return impl_->PushPayloadBytes(header);
}
void Store::Push(v1::PushRequest header, Payload payload, PushDone done) {
  impl_->Push(std::move(header), std::move(payload), std::move(done));
}
void Store::Pull(v1::PullRequest header, Payload payload, PullDone done) {
  impl_->Pull(std::move(header), std::move(payload), std::move(done));
}
absl::StatusOr<Store::Subscription> Store::MakeSubscription(const v1::SubscribeRequest& request) const {
  return impl_->MakeSubscription(request);
}
void Store::CollectChange(ShardId shard, const Subscription& subscription, std::optional<Version> from,
                          std::function<void(ShardChange)> done) {
  impl_->CollectChange(shard, subscription, from, std::move(done));
}
std::vector<ShardId> Store::owned_shards() const { return impl_->owned_shards(); }
Version Store::VersionOf(ShardId shard) const { return impl_->VersionOf(shard); }
std::optional<v1::Broadcast> Store::BroadcastOf(TableId table) const { return impl_->BroadcastOf(table); }
void Store::SetBroadcastListener(std::function<void(TableId)> listener) {
  impl_->SetBroadcastListener(std::move(listener));
}
void Store::Tick() { impl_->Tick(); }
void Store::FillStatus(v1::StatusResponse* status) const { impl_->FillStatus(status); }

}  // namespace lodestone
