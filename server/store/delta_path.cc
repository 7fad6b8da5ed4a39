#include "server/store/delta_path.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/planted_defect.h"
#include "common/base/status.h"
#include "server/shard/shard.h"
#include "server/store/catalog.h"
#include "server/store/commit_log.h"
#include "server/store/delta_builder.h"
#include "server/store/dense_snapshot.h"
#include "server/store/request_view.h"
#include "server/store/serving_gate.h"
#include "server/store/shard_set.h"
#include "server/store/table_entry.h"

namespace lodestone::server {
namespace {

// Drops the optimizer's state: kept for a while, it would have each update make fresh state.
void DropState(Shard::Snapshot* snapshot) {
  for (Shard::Snapshot::DensePart& part : snapshot->dense) {
    for (DenseTable::BlockState& block : part.blocks) block.state = {};
  }
}

}  // namespace

absl::StatusOr<DeltaPath::Subscription> DeltaPath::MakeSubscription(const v1::SubscribeRequest& request) const {
  LODESTONE_RETURN_IF_ERROR(gate_->CheckReady());
  const std::shared_ptr<const TableMap> map = catalog_->tables();
  Subscription subscription;
  for (const auto& table : request.tables()) {
    if (!map->contains(table.table())) return catalog_->UnknownTable(table.table());
    const auto same = [&](const Subscription::Table& other) { return other.id == table.table(); };
    if (std::any_of(subscription.tables.begin(), subscription.tables.end(), same)) {
      return absl::InvalidArgumentError(absl::StrCat("table id ", table.table(), " is subscribed to twice"));
    }
    subscription.tables.push_back({table.table(), table.rows()});
  }
  return subscription;
}

std::vector<const Table*> DeltaPath::Wanted(const Subscription& subscription) const {
  std::vector<const Table*> wanted;
  const std::shared_ptr<const TableMap> map = catalog_->tables();
  for (const Subscription::Table& table : subscription.tables) {
    const Table* const found = map->find(table.id)->second->table.get();
    if (found->is_dense() || table.rows) wanted.push_back(found);
  }
  return wanted;
}

bool DeltaPath::IsDense(const Subscription& subscription) const {
  const std::vector<const Table*> wanted = Wanted(subscription);
  return std::all_of(wanted.begin(), wanted.end(), [](const Table* table) { return table->is_dense(); });
}

uint64_t DeltaPath::DenseBytesOf(const Subscription& subscription, ShardId shard) const {
  uint64_t bytes = 0;
  for (const Table* table : Wanted(subscription)) {
    if (table->is_dense()) bytes += DenseTable::ValueBytes(*table, shard);
  }
  return bytes;
}

uint64_t DeltaPath::RowBytesOf(const Subscription& subscription) const {
  uint64_t bytes = 0;
  for (const Table* table : Wanted(subscription)) {
    if (table->is_dense()) continue;
    bytes += table->counters().rows.load(std::memory_order_relaxed) * (sizeof(Key) + table->dim() * sizeof(float));
  }
  return bytes == 0 ? 0 : bytes / std::max<size_t>(shards_->held().size(), 1);
}

std::vector<ShardId> DeltaPath::ShardsOf(const Subscription& subscription) const {
  const std::vector<const Table*> wanted = Wanted(subscription);
  std::vector<ShardId> shards = shards_->owned();
  std::erase_if(shards, [&wanted](ShardId shard) {
    return std::none_of(wanted.begin(), wanted.end(), [shard](const Table* table) {
      return !table->is_dense() || DenseTable::BytesNeeded(*table, shard) > 0;
    });
  });
  return shards;
}

uint64_t DeltaPath::TermOf(const Shard& shard) const { return std::max(shard.term(), shards_->OwnTermOf(shard.id())); }

bool DeltaPath::Includes(const Shard& shard, const Held& held) const {
  const bool has_what_it_begins_with = held.term == TermOf(shard) && held.version == shard.version();
  return has_what_it_begins_with || shard.Includes(held.term, held.version);
}

void DeltaPath::AwaitShown(ShardId shard, std::function<void(const absl::Status&)> done) {
  if (!committed_only_) return done(absl::OkStatus());
  const ReplicaSink::Position position{shard, shards_->VersionOf(shard)};
  log_->AwaitCommitted(shards_->ExecutorOf(shard), {&position, 1}, std::move(done));
}

void DeltaPath::Snapshot(ShardId shard, const Subscription& subscription,
                         std::function<void(absl::StatusOr<SharedSnapshot>)> done) {
  std::vector<const Table*> wanted = Wanted(subscription);
  std::erase_if(wanted, [](const Table* table) { return !table->is_dense(); });
  Executor& executor = shards_->executors()[shards_->ExecutorOf(shard)];
  executor.Submit([this, shard, wanted = std::move(wanted), done = std::move(done)] {
    if (!shards_->Owns(shard)) return done(NotOwned(shard));
    const Shard& source = *shards_->Get(shard);
    Shard::Snapshot snapshot = *source.Collect(wanted, nullptr);  // Dense tables remember all.
    DropState(&snapshot);
    SharedSnapshot shared = std::make_shared<const DenseSnapshot>(std::move(snapshot), TermOf(source), memory_);
    AwaitShown(shard, [shared = std::move(shared), done](const absl::Status& status) {
      done(status.ok() ? shared : absl::StatusOr<SharedSnapshot>(status));
    });
  });
}

void DeltaPath::Collect(ShardId shard, const Subscription& subscription, std::optional<Held> from,
                        std::function<void(absl::StatusOr<ShardChange>)> done) {
  std::vector<const Table*> wanted = Wanted(subscription);
  Executor& executor = shards_->executors()[shards_->ExecutorOf(shard)];
  executor.Submit([this, shard, wanted = std::move(wanted), from, done = std::move(done)] {
    if (!shards_->Owns(shard)) return done(NotOwned(shard));  // What is here may be half of another owner's.
    const Shard& source = *shards_->Get(shard);
    std::optional<Version> base;
    if (from.has_value() && Includes(source, *from)) base = from->version;
    // Rows remember the low half of their version only.
    if (base.has_value() && source.version() - *base >= uint64_t{1} << 31) base.reset();
    if (Planted(Defect::kBroadcastSkipsVersion) && base.has_value() && *base < source.version()) ++*base;
    auto snapshot = source.Collect(wanted, base.has_value() ? &*base : nullptr);
    if (!snapshot.has_value()) {
      base.reset();
      snapshot = source.Collect(wanted, nullptr);
    }
    const auto assemble = [base, term = TermOf(source)](const Shard::Snapshot& what) {
      return AssembleChange(what, base, term, limits::kDeltaBytesTarget);
    };
    DropState(&*snapshot);
    const auto kept = std::make_shared<const Shard::Snapshot>(*std::move(snapshot));
    AwaitShown(shard, [this, kept, assemble, done](const absl::Status& status) {
      if (!status.ok()) return done(status);
      if (kept->rows.empty()) return done(assemble(*kept));
      // Copying rows takes longer than the executor should be away.
      shards_->executors().background().Submit([kept, assemble, done] { done(assemble(*kept)); });
    });
  });
}

}  // namespace lodestone::server
