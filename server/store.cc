#include "server/store.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status.h"
#include "server/store_impl.h"

namespace lodestone {
namespace {

constexpr size_t kRateSamples = 5;  // Rates are measured over this many ticks.

}  // namespace

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

void Store::Impl::AddToShards(TableEntry* entry) {
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
}

absl::StatusOr<v1::EnsureTablesResponse> Store::Impl::EnsureTables(const v1::EnsureTablesRequest& request) {
  LODESTONE_RETURN_IF_ERROR(CheckReady());
  if (request.worker_incarnation() != 0) {
    LODESTONE_RETURN_IF_ERROR(sessions_.Open(request.worker_incarnation(), options_.time->NowMs()));
  }
  v1::EnsureTablesResponse response;
  const std::vector<ShardId> owned = owned_shards();
  for (const v1::TableSpec& spec : request.tables()) {
    LODESTONE_ASSIGN_OR_RETURN(const std::shared_ptr<const TableEntry> entry,
                               catalog_.Ensure(spec, owned, [this](TableEntry* fresh) { AddToShards(fresh); }));
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
