#include "server/rpc/shared_snapshots.h"

#include <algorithm>
#include <iterator>
#include <optional>

namespace lodestone::server {

uint64_t SharedSnapshots::Now() const {
  MutexLock lock(&mu_);
  return now_;
}

SharedSnapshots::Key SharedSnapshots::KeyOf(ShardId shard, const DeltaPath::Subscription& subscription) {
  Key key{shard, {}};
  for (const DeltaPath::Subscription::Table& table : subscription.tables) key.tables.push_back(table.id);
  std::sort(key.tables.begin(), key.tables.end());
  return key;
}

bool SharedSnapshots::Has(ShardId shard, const DeltaPath::Subscription& subscription, uint64_t since, bool any) const {
  const Key key = KeyOf(shard, subscription);
  MutexLock lock(&mu_);
  const auto entry = entries_.find(key);
  if (entry == entries_.end() || !(any || entry->second.began > since)) return false;
  return entry->second.collecting || !entry->second.snapshot.expired();
}

void SharedSnapshots::Get(ShardId shard, const DeltaPath::Subscription& subscription, uint64_t since, bool any,
                          Done done) {
  Key key = KeyOf(shard, subscription);
  std::shared_ptr<const DenseSnapshot> snapshot;
  uint64_t began = 0;
  {
    MutexLock lock(&mu_);
    Purge();
    Entry& entry = entries_[key];
    const bool usable = any || entry.began > since;
    if (usable && !entry.collecting) snapshot = entry.snapshot.lock();
    if (snapshot == nullptr) {
      entry.waiters.push_back({since, std::move(done)});
      if (usable && entry.collecting) return;
      entry.collecting = true;
      entry.began = ++now_;
    }
    began = entry.began;
  }
  if (snapshot != nullptr) return done(DeltaPath::SharedSnapshot(std::move(snapshot)), began > since);
  deltas_->Snapshot(shard, subscription,
                    [self = shared_from_this(), key = std::move(key), began](const auto& collected) {
                      self->OnCollected(key, began, collected);
                    });
}

void SharedSnapshots::OnCollected(const Key& key, uint64_t began,
                                  const absl::StatusOr<DeltaPath::SharedSnapshot>& snapshot) {
  std::vector<Waiter> waiters;
  {
    MutexLock lock(&mu_);
    const auto entry = entries_.find(key);
    if (entry == entries_.end()) return;
    std::vector<Waiter>& all = entry->second.waiters;
    if (entry->second.began == began) {
      waiters.swap(all);
      entry->second.collecting = false;
      if (snapshot.ok()) entry->second.snapshot = *snapshot;
      if (!snapshot.ok()) entries_.erase(entry);
    } else if (snapshot.ok()) {
      // A newer one is under way, for those that this one began too early for.
      const auto served = std::stable_partition(all.begin(), all.end(),
                                                [began](const Waiter& waiter) { return waiter.since >= began; });
      waiters.assign(std::make_move_iterator(served), std::make_move_iterator(all.end()));
      all.erase(served, all.end());
    }
  }
  for (const Waiter& waiter : waiters) waiter.done(snapshot, began > waiter.since);
}

void SharedSnapshots::Purge() {
  if (entries_.size() < purge_at_) return;
  absl::erase_if(entries_,
                 [](const auto& entry) { return !entry.second.collecting && entry.second.snapshot.expired(); });
  purge_at_ = std::max<size_t>(1024, 2 * entries_.size());
}

}  // namespace lodestone::server
