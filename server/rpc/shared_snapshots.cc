#include "server/rpc/shared_snapshots.h"

#include <algorithm>
#include <optional>

namespace lodestone::server {

uint64_t SharedSnapshots::Now() const {
  MutexLock lock(&mu_);
  return now_;
}

void SharedSnapshots::Get(ShardId shard, const DeltaPath::Subscription& subscription, uint64_t since, bool any,
                          Done done) {
  Key key{shard, {}};
  for (const DeltaPath::Subscription::Table& table : subscription.tables) key.tables.push_back(table.id);
  std::sort(key.tables.begin(), key.tables.end());
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
  if (snapshot != nullptr) return done(std::move(snapshot), began > since);
  deltas_->Snapshot(shard, subscription,
                    [self = shared_from_this(), key = std::move(key), began](const auto& collected) {
                      self->OnCollected(key, began, collected);
                    });
}

void SharedSnapshots::OnCollected(const Key& key, uint64_t began,
                                  const std::shared_ptr<const DenseSnapshot>& snapshot) {
  std::vector<Waiter> waiters;
  {
    MutexLock lock(&mu_);
    const auto entry = entries_.find(key);
    if (entry == entries_.end() || entry->second.began != began) return;  // A newer one is under way for all.
    waiters.swap(entry->second.waiters);
    if (snapshot == nullptr) {
      entries_.erase(entry);
    } else {
      entry->second.collecting = false;
      entry->second.snapshot = snapshot;
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
