// The waits of a cluster as a graph: its nodes are processes, its edges the waits that they have registered. Each chain
// of waits leads to a root: a disk, a process that is not heard of, a worker that trains, or back to itself.
//
// Thread safety: a plain value, and functions that may be called from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "proto/admin.pb.h"

namespace lodestone {

class WaitGraph {
 public:
  // `cluster`: as its coordinator knows it, with the waits that workers and servers have reported; must outlive this.
  // `coordinator`: the index of the ps that serves it; nullopt: it is not known.
  WaitGraph(const v1::ClusterStatus* cluster, std::optional<uint32_t> coordinator);

  // Adds what the coordinator says that others wait for (WaitStatus.waiter); all else is passed over. What the same
  // process has reported about the same targets itself is older, and goes.
  void Add(const v1::WaitStatus& wait);
  // A ps was asked for its status: whether it answered, which says more than its heartbeats.
  void NoteAsked(uint32_t server, bool answered) { answered_[server] = answered; }

  // A chain for each wait that no other process's chain goes through, the longest wait first; those that differ in the
  // first process only are one. At most limits::kWaitChainsMax.
  std::vector<v1::WaitChain> Chains() const;

 private:
  using Process = std::pair<v1::WaitTarget::Kind, uint32_t>;  // WORKER or SERVER, and its index.

  void Insert(const Process& process, const v1::WaitStatus& wait);
  // Of a wait for batches of a step: makes the workers that have leased them its targets. What no worker has stays.
  void NameContributors(v1::WaitStatus* wait) const;
  const v1::MemberStatus* Find(const Process& process) const;
  // The process that a target is; nullopt: it is none.
  std::optional<Process> ProcessOf(const v1::WaitTarget& target) const;
  // Why nothing more is known of a process: it is dead, or silent. Empty: it is heard of.
  std::string WhySilent(const Process& process) const;
  // The wait that a call for `shards` of a process meets (none: for all); null: none is known.
  const v1::WaitStatus* WaitMetBy(const Process& process, const v1::WaitTarget& call) const;
  // The target to follow: of several one that is silent, or else one that waits.
  const v1::WaitTarget* Choose(const v1::WaitStatus& wait) const;
  // The chain that begins so; notes in `told` which waits it goes through.
  v1::WaitChain Follow(const Process& first, const v1::WaitStatus& wait, std::set<const v1::WaitStatus*>* told) const;
  // Whether the waits of `chain` from link `first` on were there at the same moment, whenever each was last heard of.
  bool WereAtOnce(const v1::WaitChain& chain, int first) const;
  // Ends `chain` at a process of which no wait is known.
  void EndAt(const Process& process, const v1::WaitStatus& last, v1::WaitChain* chain) const;

  const std::optional<uint32_t> coordinator_;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> contributors_;  // By (step, batch): the worker that has leased it.
  std::map<Process, const v1::MemberStatus*> members_;
  std::map<uint32_t, bool> answered_;  // By index, of servers that were asked.
  std::map<Process, std::vector<v1::WaitStatus>> waits_;
};

// The workers that train at less than half the median rate of the others, and the servers where a push takes more than
// twice the median of the others.
std::vector<v1::SlowMember> SlowMembersOf(const v1::ClusterStatus& cluster);

// Fills in ClusterStatus.why and slow, where `status` has the cluster.
void ExplainWaits(v1::StatusResponse* status);

}  // namespace lodestone
