// A simulated cluster: the coordinator, embedded or elected, the ps and the clients of one seed, and what can be done
// to them.
//
// Used by one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "proto/config.pb.h"
#include "tests/simulation/client.h"
#include "tests/simulation/coordinator.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/kernel.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/network.h"
#include "tests/simulation/ps.h"

namespace lodestone::simulation {

// What a cluster is like: drawn from the seed.
struct Shape {
  uint32_t servers = 1;
  uint32_t replicas = 1;
  uint32_t shards = 4;
  uint32_t clients = 1;
  bool elected = false;  // The coordinator; else it is embedded in ps 0.
  bool syncs = false;    // durability: machine.
  uint32_t lease_ms = 1000;
  uint64_t segment_bytes = 1 << 20;
  uint32_t checkpoint_ms = 3000;

  std::string Describe() const;
};
Shape DrawShape(Kernel* kernel);

class Cluster {
 public:
  // All must outlive it.
  Cluster(const Shape& shape, Kernel* kernel, Network* network, Disk* disk, Ledger* ledger);
  ~Cluster();

  // What follows is called on a fiber of the world. Starts all.
  void Start();
  // Ends all; returns when no fiber of theirs is left.
  void End();

  bool Runs(uint32_t server) const { return machines_[server].ps != nullptr; }
  const ProcessRef& process(uint32_t server) const { return machines_[server].process; }
  // Ends a ps's process; with `machine`, what its disk does not have is lost too.
  void Kill(uint32_t server, bool machine);
  // Starts a ps that does not run, as soon as its former life has ended.
  void StartPs(uint32_t server);
  // The ps that is elected gives its place up, as one does that cannot reach etcd. Nothing where it is embedded.
  void Depose();
  // An operator plans moves, if there is a coordinator that leads.
  void PlanMoves(const v1::MoveRequest& request);
  // Whether all that has followers has them in sync, as is saved.
  bool AllInSync() const;
  // The same, and the coordinator has heard of all ps that run.
  bool IsWell() const;
  // What is amiss with a cluster that was left alone; empty: nothing, all serve, and all is in sync.
  std::string WhatIsMissing() const;
  // Judges all rows, and compares the copies. REQUIRES: nothing is missing, and the clients are done.
  void Judge();

  const Shape& shape() const { return shape_; }
  std::vector<std::unique_ptr<Client>>& clients() { return clients_; }
  const Directory& directory() const { return directory_; }

  static uint32_t MachineOfClient(uint32_t client) { return 100 + client; }

 private:
  struct Machine {
    ProcessRef process;
    std::unique_ptr<Ps> ps;
    std::unique_ptr<Coordinator> coordinator;
    Thread election;
    bool ending = false;    // A former life is.
    bool starting = false;  // The next one is.
    int boots = 1;
  };

  v1::Config ConfigOf(uint32_t server) const;
  Coordinator::Options CoordinatorOptions(int64_t term) const;
  void RunElection(uint32_t server, const ProcessRef& process);
  absl::StatusOr<std::string> CallCoordinator(Method method, std::string request, int64_t timeout_ms);
  const Coordinator* coordinator() const;
  void JudgeRows(uint32_t server, const ShardMap& map);
  void CompareCopies(const ShardMap& map);
  // Whether a client has the incarnation now.
  bool IsOpen(Incarnation worker) const;

  const Shape shape_;
  Kernel* const kernel_;
  Network* const network_;
  Disk* const disk_;
  Ledger* const ledger_;
  Ballot ballot_;
  int64_t no_ballot_until_us_ = 0;  // Who is elected does not reach etcd.
  Directory directory_;
  std::vector<Machine> machines_;
  std::vector<std::unique_ptr<Client>> clients_;
};

}  // namespace lodestone::simulation
