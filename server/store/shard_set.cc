#include "server/store/shard_set.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "server/shard/shard.h"

namespace lodestone::server {
namespace {

constexpr size_t kShardsMeasuredAtOnce = 64;  // By an executor, between two of its messages.

}  // namespace

ShardSet::ShardSet(uint32_t shards, uint32_t executors, int64_t turn_ns, const ServingGate* gate)
    : gate_(gate),
      shards_(shards),
      executor_of_(shards),
      own_terms_(shards),
      roles_(shards),
      loads_(shards),
      hot_keys_(shards),
      generations_(shards),
      kept_(shards),
      executors_(executors, turn_ns) {}

ShardSet::~ShardSet() = default;

void ShardSet::Adopt(const std::vector<ShardId>& shards) {
  {
    MutexLock lock(&mu_);
    LODESTONE_CHECK(!gate_->open() && made_ == 0);
  }
  for (const ShardId shard : shards) {
    LODESTONE_CHECK(shard < size());
    Make(shard);
    roles_.Set(shard, ShardRole::kOwns);
  }
}

void ShardSet::Make(ShardId shard) {
  MutexLock lock(&mu_);
  if (shards_[shard] != nullptr) return;
  shards_[shard] = std::make_unique<Shard>(shard);
  executor_of_[shard] = made_++ % executors_.size();
  if (!lineages_.empty()) shards_[shard]->RaiseLineage(lineages_[shard]);
}

void ShardSet::SetLineages(std::vector<uint64_t> lineages) {
  for (const ShardId shard : adopted()) {
    Run(shard, [&](Shard* made) { made->RaiseLineage(lineages[shard]); });
  }
  MutexLock lock(&mu_);
  lineages_ = std::move(lineages);
}

std::vector<ShardId> ShardSet::owned() const {
  return gate_->open() ? roles_.AtLeast(ShardRole::kOwns) : std::vector<ShardId>();
}

bool ShardSet::IsOwner(ShardId shard) const { return gate_->open() && roles_.Of(shard) >= ShardRole::kGivesUp; }

bool ShardSet::IsWhole(ShardId shard) const {
  const ShardRole role = roles_.Of(shard);
  return role >= ShardRole::kFollows || (role == ShardRole::kFollowing && kept_[shard].load(std::memory_order_acquire));
}

std::vector<ShardId> ShardSet::whole() const {
  std::vector<ShardId> shards = adopted();
  std::erase_if(shards, [this](ShardId shard) { return !IsWhole(shard); });
  return shards;
}

Version ShardSet::VersionOf(ShardId shard) const { return shards_[shard]->version(); }

void ShardSet::MeasureLoads(int64_t now_ms) {
  const std::vector<ShardId> shards = owned();
  loads_.Sample(now_ms, shards);
  hot_keys_.Keep(shards);
  if (measuring_.load() > 0) return;
  std::vector<std::vector<ShardId>> by_executor(executors_.size());
  for (const ShardId shard : shards) by_executor[ExecutorOf(shard)].push_back(shard);
  for (size_t e = 0; e < by_executor.size(); ++e) {
    if (by_executor[e].empty()) continue;
    measuring_.fetch_add(1);
    Measure(e, std::make_shared<const std::vector<ShardId>>(std::move(by_executor[e])), 0, now_ms);
  }
}

void ShardSet::Measure(size_t executor, std::shared_ptr<const std::vector<ShardId>> shards, size_t first,
                       int64_t now_ms) {
  executors_[executor].Submit([this, executor, shards = std::move(shards), first, now_ms] {
    const size_t end = std::min(shards->size(), first + kShardsMeasuredAtOnce);
    for (size_t i = first; i < end; ++i) {
      const ShardId shard = (*shards)[i];
      if (!Owns(shard)) continue;
      loads_.SetBytes(shard, shards_[shard]->TableBytes());
      hot_keys_.Measure(shard, now_ms);
    }
    if (end < shards->size()) return Measure(executor, shards, end, now_ms);
    measuring_.fetch_sub(1);
  });
}

void ShardSet::Run(ShardId shard, const std::function<void(Shard*)>& use) {
  (void)roles_.Of(shard);  // The caller learnt of the shard from its role: what was written before is seen here.
  executors_[ExecutorOf(shard)].SubmitAndWait([&] { use(shards_[shard].get()); });
}

void ShardSet::Own(ShardId shard, uint64_t term) {
  Run(shard, [&](Shard* owned) {
    owned->rollback().Drop();  // The pieces of one that its former owner did not come to the end of.
    own_terms_[shard] = term;
    Serve(owned);
  });
}

void ShardSet::Disown(ShardId shard, bool whole) {
  Run(shard, [&](Shard*) {
    if (!whole) Spoil(shard);
    if (whole && RoleOf(shard) >= ShardRole::kFollows) kept_[shard].store(true, std::memory_order_release);
    roles_.Set(shard, ShardRole::kFollowing);
    TellChanged(shard);
  });
}

void ShardSet::GiveUp(ShardId shard) {
  Run(shard, [&](Shard*) {
    roles_.Set(shard, ShardRole::kGivesUp);
    TellChanged(shard);
  });
}

void ShardSet::TakeBack(ShardId shard) {
  Run(shard, [&](Shard* owned) { Serve(owned); });
}

void ShardSet::Serve(Shard* shard) {
  if (prepare_) prepare_(shard);
  roles_.Set(shard->id(), ShardRole::kOwns);
}

void ShardSet::PrepareOwned() {
  for (const ShardId shard : roles_.AtLeast(ShardRole::kOwns)) {
    Run(shard, [&](Shard* owned) {
      if (prepare_) prepare_(owned);
    });
  }
}

void ShardSet::BeginState(ShardId shard) {
  Spoil(shard);
  roles_.Set(shard, ShardRole::kFollowing);
  generations_[shard].fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace lodestone::server
