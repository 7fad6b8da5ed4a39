// The shards of a ps: which of them are here and in what role, their terms, and the executors that own them.
//
// Thread-safe. Shards themselves are not: what Get returns may be used on the shard's executor only (Run), but for what
// shard.h says is thread-safe.
//
// Ownership: a shard that was made stays until the set is destroyed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/types.h"
#include "server/shard/shard_role.h"
#include "server/store/executors.h"
#include "server/store/hot_keys.h"
#include "server/store/serving_gate.h"
#include "server/store/shard_loads.h"

namespace lodestone::server {

class Shard;

class ShardSet {
 public:
  // `shards` is the cluster's number of shards. `gate` must outlive the set. `executors` and `turn_ns` as Executors.
  ShardSet(uint32_t shards, uint32_t executors, int64_t turn_ns, const ServingGate* gate);
  ~ShardSet();

  // The cluster's number of shards; ids are below it.
  uint32_t size() const { return roles_.shards(); }
  Executors& executors() { return executors_; }
  const Executors& executors() const { return executors_; }

  // Makes the shards, empty and owned. Call once, while the gate is closed.
  void Adopt(const std::vector<ShardId>& shards);
  // Makes a shard without tables and without a role, unless it is here.
  void Make(ShardId shard);
  // The least lineages of all shards, by id, also of those that are made later. Before the gate opens.
  void SetLineages(std::vector<uint64_t> lineages);

  // The shards that are here in any role, ascending; of them, those whose contents count: owned, or followed and
  // complete; and those owned, none before the gate opens.
  std::vector<ShardId> adopted() const { return roles_.AtLeast(ShardRole::kFollowing); }
  std::vector<ShardId> held() const { return roles_.AtLeast(ShardRole::kFollows); }
  std::vector<ShardId> owned() const;
  // Whether the shard's contents are whole: they count, or they did, and nothing else has taken their place since this
  // ps stopped answering for them. Then they may be all that there is: its disk must not forget them.
  bool IsWhole(ShardId shard) const;
  // The shards that are, ascending.
  std::vector<ShardId> whole() const;

  const ShardRoles& roles() const { return roles_; }
  ShardRole RoleOf(ShardId shard) const { return roles_.Of(shard); }
  bool Owns(ShardId shard) const { return roles_.Of(shard) == ShardRole::kOwns; }
  // Whether this ps is its owner by the map: answers for it, or did until it was to give it up. Of none before the gate
  // opens.
  bool IsOwner(ShardId shard) const;
  // On the shard's executor, or before the shard has a role.
  void SetRole(ShardId shard, ShardRole role) { roles_.Set(shard, role); }

  // REQUIRES for what follows: the shard was made.
  Shard* Get(ShardId shard) const { return shards_[shard].get(); }
  // The newest version, without waiting for the executor.
  Version VersionOf(ShardId shard) const;
  size_t ExecutorOf(ShardId shard) const { return executor_of_[shard]; }
  // Runs `use` with the shard on its executor, and waits.
  void Run(ShardId shard, const std::function<void(Shard*)>& use);

  // What the shards hold and what comes to them; and its measuring, about once a second.
  ShardLoads& loads() { return loads_; }
  const ShardLoads& loads() const { return loads_; }
  HotKeys& hot_keys() { return hot_keys_; }
  const HotKeys& hot_keys() const { return hot_keys_; }
  void MeasureLoads(int64_t now_ms);

  // Before any shard is made: `listener` is called with each shard that is not answered for any more, or of which
  // anything but a push has changed what pulls wait for. On its executor.
  void SetListener(std::function<void(ShardId)> listener) { listener_ = std::move(listener); }
  void TellChanged(ShardId shard) const {
    if (listener_) listener_(shard);
  }

  // Before any shard is made: `prepare` is called with each shard that this ps is about to answer for. On its executor.
  void SetPrepare(std::function<void(Shard*)> prepare) { prepare_ = std::move(prepare); }

  // Before the gate opens: the terms (RouteResponse.terms) of updates that are made here, by shard; else 0.
  void SetTerms(const std::vector<uint64_t>& terms) { own_terms_ = terms; }
  // The term of updates that are made here from now on. On the shard's executor.
  uint64_t OwnTermOf(ShardId shard) const { return own_terms_[shard]; }
  // Prepares the shards that were adopted as owned. Once, before the gate opens.
  void PrepareOwned();
  // Answers for a held shard from now on; its updates are of `term`.
  void Own(ShardId shard, uint64_t term);
  // Stops answering for it: it is followed, and not complete. `whole`: its contents are, if they counted.
  void Disown(ShardId shard, bool whole = true);
  // Its contents are not whole any more. On its executor.
  void Spoil(ShardId shard) { kept_[shard].store(false, std::memory_order_release); }
  // Stops answering for it, and keeps it as it is; and answers for it again, as before.
  void GiveUp(ShardId shard);
  void TakeBack(ShardId shard);

  // The shard's contents are about to be replaced by those of another server. On its executor.
  void BeginState(ShardId shard);
  // Incremented by BeginState: older checkpoints are no base for a delta.
  uint64_t StateGeneration(ShardId shard) const { return generations_[shard].load(std::memory_order_acquire); }

 private:
  // Prepares a shard and answers for it. On its executor.
  void Serve(Shard* shard);
  // Has an executor measure bytes and hot keys of `shards`, some at a time, from the one with this place on.
  void Measure(size_t executor, std::shared_ptr<const std::vector<ShardId>> shards, size_t first, int64_t now_ms);

  const ServingGate* const gate_;
  std::function<void(ShardId)> listener_;
  std::function<void(Shard*)> prepare_;

  // By id; made before the shard gets a role, and never removed after that. Each is owned by its executor.
  std::vector<std::unique_ptr<Shard>> shards_;
  std::vector<size_t> executor_of_;
  std::vector<uint64_t> own_terms_;  // Owned by the executors.

  // Synchronise themselves.
  ShardRoles roles_;
  ShardLoads loads_;
  HotKeys hot_keys_;
  std::atomic<size_t> measuring_{0};  // Executors that do.
  std::vector<std::atomic<uint64_t>> generations_;
  std::vector<std::atomic<bool>> kept_;  // Of shards that count no more: they are whole.
  Executors executors_;

  Mutex mu_;                              // Held while shards are made.
  size_t made_ ABSL_GUARDED_BY(mu_) = 0;  // Shards.
  std::vector<uint64_t> lineages_ ABSL_GUARDED_BY(mu_);
};

}  // namespace lodestone::server
