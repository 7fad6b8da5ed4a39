#include "server/store/sweeper.h"

#include <memory>
#include <utility>

#include "server/shard/shard.h"
#include "server/store/catalog.h"
#include "server/store/commit_log.h"
#include "server/store/logged_evictions.h"
#include "server/store/serving_gate.h"
#include "server/store/sessions.h"
#include "server/store/shard_set.h"
#include "server/store/table_entry.h"
#include "server/table/eviction_policy.h"

namespace lodestone::server {

// Of one executor's shards, one after the other: of all steps one alone waits in its queue, so that what comes
// meanwhile waits for one.
struct Sweeper::Sweep {
  std::vector<ShardId> shards;   // The last one is swept.
  bool begun = false;            // Its sweep is.
  std::vector<SweepShare> left;  // Of that one.
};

void Sweeper::Tick(int64_t now_ms) {
  now_ms_.store(now_ms);
  if (!gate_->open()) return;
  const std::vector<Incarnation> forgotten = sessions_->ForgetIdle(now_ms);
  if (!forgotten.empty()) ForgetWorkers(forgotten, forgotten, /*ended=*/false);
  const std::shared_ptr<const TableMap> map = catalog_->tables();
  bool evicts = false;
  for (const auto& [id, entry] : *map) evicts |= EvictionPolicy::TracksUsage(*entry->table);
  if (!evicts || stopped_.load() || sweeping_.load() > 0) return;
  std::vector<std::shared_ptr<Sweep>> sweeps(shards_->executors().size());
  for (const ShardId shard : shards_->owned()) {
    std::shared_ptr<Sweep>& sweep = sweeps[shards_->ExecutorOf(shard)];
    if (sweep == nullptr) sweep = std::make_shared<Sweep>();
    sweep->shards.push_back(shard);
  }
  for (size_t executor = 0; executor < sweeps.size(); ++executor) {
    if (sweeps[executor] == nullptr) continue;
    sweeping_.fetch_add(1);
    shards_->executors()[executor].Submit([this, executor, sweep = sweeps[executor]] { SweepStep(executor, sweep); });
  }
}

void Sweeper::SweepStep(size_t executor, const std::shared_ptr<Sweep>& sweep) {
  if (sweep->shards.empty() || stopped_.load()) {
    sweeping_.fetch_sub(1);
    return;
  }
  const ShardId shard = sweep->shards.back();
  if (!sweep->begun && shards_->Owns(shard)) sweep->left = shards_->Get(shard)->BeginSweep();
  sweep->begun = true;
  if (!sweep->left.empty() && shards_->Owns(shard)) {
    EvictExpired(shard, now_ms_.load(), &sweep->left);
  } else {
    sweep->left.clear();
  }
  if (sweep->left.empty()) {
    sweep->shards.pop_back();
    sweep->begun = false;
  }
  shards_->executors()[executor].Submit([this, executor, sweep] { SweepStep(executor, sweep); });
}

void Sweeper::EndSessions(std::span<const Incarnation> workers) {
  std::vector<Incarnation> open;
  for (const Incarnation worker : workers) {
    if (sessions_->End(worker)) open.push_back(worker);
  }
  if (!gate_->open()) return;  // What is restored later is not reopened, and keeps no marks of theirs.
  ForgetWorkers({workers.begin(), workers.end()}, open, /*ended=*/true);
}

void Sweeper::ForgetWorkers(std::vector<Incarnation> workers, std::span<const Incarnation> log, bool ended) {
  for (const Incarnation worker : log) {
    v1::LogRecord record;
    record.set_session_forgotten(worker);
    record.set_session_ended(ended);
    log_->AppendToOneUnawaited(record);
  }
  const auto shared = std::make_shared<const std::vector<Incarnation>>(std::move(workers));
  for (const ShardId shard : shards_->adopted()) {
    if (!shards_->IsOwner(shard)) continue;  // A follower hears of it from its owner.
    shards_->executors()[shards_->ExecutorOf(shard)].Submit([this, shard, shared] {
      if (!shards_->IsOwner(shard)) return;
      for (const Incarnation worker : *shared) shards_->Get(shard)->ForgetWorker(worker);
    });
  }
}

void Sweeper::EvictExpired(ShardId shard, int64_t now_ms, std::vector<SweepShare>* left) {
  Shard* const owned = shards_->Get(shard);
  if (!log_->health().ok() || !gate_->CheckServing().ok()) return left->clear();  // Later sweeps will find these rows.
  Evictions evictions;
  if (!owned->EvictExpired(now_ms, left, &evictions)) return;
  if (!log_->HasLogOrFollowers()) return log_->BeginTerm(owned);
  std::vector<ShardLog::Record> records(1);
  v1::LoggedExpiry& expiry = *records[0].message.mutable_expiry();
  for (const EvictedKeys& group : evictions.groups()) *expiry.add_evicted() = ToProto(group);
  log_->AppendUnawaited(owned, now_ms, std::move(records));
}

}  // namespace lodestone::server
