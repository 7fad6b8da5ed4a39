#include "server/rpc/shared_snapshots.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

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
                          uint64_t bytes, bool at_once, Done done) {
  const Key key = KeyOf(shard, subscription);
  std::shared_ptr<const DenseSnapshot> snapshot;
  uint64_t began = 0;
  Room room;
  bool awaits = false;
  {
    MutexLock lock(&mu_);
    Purge();
    Entry& entry = entries_[key];
    const bool usable = any || entry.began > since;
    if (usable && !entry.collecting) snapshot = entry.snapshot.lock();
    began = entry.began;
    if (snapshot == nullptr) {
      entry.waiters.push_back({since, std::move(done)});
      if ((usable && entry.collecting) || (entry.awaits_room && !at_once)) return;
      if (BroadcastMemory::IsLarge(bytes)) {
        room = deltas_->memory()->Ask(bytes);
        awaits = room == nullptr && !at_once;
      }
      if (awaits) entry.awaits_room = true;
      if (!awaits) began = Begin(&entry);
    }
  }
  if (snapshot != nullptr) return done(DeltaPath::SharedSnapshot(std::move(snapshot)), began > since);
  if (awaits) return AwaitRoom(key, subscription, bytes);
  Collect(key, subscription, began, std::move(room));
}

uint64_t SharedSnapshots::Begin(Entry* entry) {
  entry->collecting = true;
  return entry->began = ++now_;
}

void SharedSnapshots::AwaitRoom(const Key& key, const DeltaPath::Subscription& subscription, uint64_t bytes) {
  deltas_->memory()->Await(bytes, weak_from_this(), [weak = weak_from_this(), key, subscription](Room room) {
    if (const auto self = weak.lock(); self != nullptr) self->OnRoom(key, subscription, std::move(room));
  });
}

void SharedSnapshots::OnRoom(const Key& key, const DeltaPath::Subscription& subscription, Room room) {
  uint64_t began = 0;
  {
    MutexLock lock(&mu_);
    const auto entry = entries_.find(key);
    if (entry == entries_.end() || !std::exchange(entry->second.awaits_room, false)) return;
    if (entry->second.waiters.empty()) return;  // They were served by another collection.
    began = Begin(&entry->second);
  }
  Collect(key, subscription, began, std::move(room));
}

void SharedSnapshots::Collect(const Key& key, const DeltaPath::Subscription& subscription, uint64_t began, Room room) {
  deltas_->Snapshot(key.shard, subscription,
                    [self = shared_from_this(), key, began, room = std::move(room)](const auto& collected) {
                      if (room != nullptr) room->Release();  // The snapshot itself counts now.
                      self->OnCollected(key, began, collected);
                    });
}

void SharedSnapshots::OnCollected(const Key& key, uint64_t began,
                                  const absl::StatusOr<DeltaPath::SharedSnapshot>& snapshot) {
  std::vector<Waiter> waiters;
  {
    MutexLock lock(&mu_);
    const auto found = entries_.find(key);
    if (found == entries_.end()) return;
    Entry& entry = found->second;
    const bool newest = entry.began == began;
    if (newest) entry.collecting = false;
    if (newest && snapshot.ok()) entry.snapshot = *snapshot;
    if (newest || snapshot.ok()) {
      // A newer one is under way, or awaits room, for those that this one began too early for.
      const bool serves_all = newest && !(entry.awaits_room && snapshot.ok());
      const auto served = std::stable_partition(
          entry.waiters.begin(), entry.waiters.end(),
          [serves_all, began](const Waiter& waiter) { return !serves_all && waiter.since >= began; });
      waiters.assign(std::make_move_iterator(served), std::make_move_iterator(entry.waiters.end()));
      entry.waiters.erase(served, entry.waiters.end());
    }
    if (newest && !snapshot.ok()) entries_.erase(found);
  }
  for (const Waiter& waiter : waiters) waiter.done(snapshot, began > waiter.since);
}

void SharedSnapshots::Purge() {
  if (entries_.size() < purge_at_) return;
  absl::erase_if(entries_, [](const auto& entry) {
    const Entry& of = entry.second;
    return !of.collecting && !of.awaits_room && of.snapshot.expired();
  });
  purge_at_ = std::max<size_t>(1024, 2 * entries_.size());
}

}  // namespace lodestone::server
