#include "server/store/shard_set.h"

#include "common/base/check.h"
#include "server/shard/shard.h"

namespace lodestone::server {

ShardSet::ShardSet(uint32_t shards, uint32_t executors, const ServingGate* gate)
    : gate_(gate),
      shards_(shards),
      executor_of_(shards),
      own_terms_(shards),
      roles_(shards),
      generations_(shards),
      kept_(shards),
      executors_(executors) {}

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

void ShardSet::Run(ShardId shard, const std::function<void(Shard*)>& use) {
  (void)roles_.Of(shard);  // The caller learnt of the shard from its role: what was written before is seen here.
  executors_[ExecutorOf(shard)].SubmitAndWait([&] { use(shards_[shard].get()); });
}

void ShardSet::Own(ShardId shard, uint64_t term) {
  Run(shard, [&](Shard* owned) {
    owned->rollback().Drop();  // The pieces of one that its former owner did not come to the end of.
    own_terms_[shard] = term;
    roles_.Set(shard, ShardRole::kOwns);
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
  Run(shard, [&](Shard*) { roles_.Set(shard, ShardRole::kOwns); });
}

void ShardSet::BeginState(ShardId shard) {
  Spoil(shard);
  roles_.Set(shard, ShardRole::kFollowing);
  generations_[shard].fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace lodestone::server
