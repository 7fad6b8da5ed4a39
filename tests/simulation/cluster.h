// A simulated cluster: the coordinator, embedded or elected, the ps and the clients of one seed, and what can be done
// to them.
//
// Used by one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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
  bool late = false;  // The last of these may come when the cluster has begun, or never (cluster.servers_at_start).
  uint32_t replicas = 1;
  uint32_t shards = 4;
  uint32_t clients = 1;
  bool elected = false;  // The coordinator; else it is embedded in ps 0.
  bool syncs = false;    // durability: machine.
  uint32_t lease_ms = 1000;
  uint64_t segment_bytes = 1 << 20;
  uint32_t checkpoint_ms = 3000;
  bool one_checkpoint_dir = false;  // Of all ps.

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
  bool FetchesRoute(uint32_t server) const { return Runs(server) && machines_[server].ps->fetches_route(); }
  const ProcessRef& process(uint32_t server) const { return machines_[server].process; }
  // Ends a ps's process; with `machine`, what its disk does not have is lost too.
  void Kill(uint32_t server, bool machine);
  // Ends a ps by SIGTERM, and waits for its end; then, with `machine`, that ends too. Whether it ended so: it does not
  // if it does not serve, and may be killed meanwhile.
  bool Leave(uint32_t server, bool machine);
  // What a ps that was killed has on its disk is gone for ever.
  void LoseDisk(uint32_t server);
  // Starts a ps that does not run, as soon as its former life has ended.
  void StartPs(uint32_t server);
  // The ps that is elected gives its place up, as one does that cannot reach etcd. Nothing where it is embedded.
  void Depose();
  // Has each ps write a named checkpoint, all at once. REQUIRES: IsWell.
  absl::Status WriteCheckpoint(const std::string& name);
  // Kills the clients.
  void EndClients();
  // Kills all ps, some with their machines, and starts them with checkpoint.load, some later than others, and new
  // clients. One that has gone back is started with it again, or without it. REQUIRES: there are no clients.
  void GoBack(const std::string& checkpoint);
  // Kills all ps, and starts them with other cluster.replicas.
  void ChangeReplicas(uint32_t replicas);
  // Ends all ps by SIGTERM, and starts so many, and new clients. REQUIRES: all serve, nobody is late, one
  // checkpoint.dir, and no clients.
  void ChangeServers(uint32_t servers);
  // Whether the late ps has not come yet; and has it come.
  bool IsOut(uint32_t server) const { return !machines_[server].came; }
  void Come();
  // An operator plans moves, or has a ps drained or not, if there is a coordinator that leads.
  void PlanMoves(const v1::MoveRequest& request);
  void Drain(const v1::DrainRequest& request);
  // Lets drained ps hold shards again where there are too few others for all copies.
  void UndoDrains();
  // Whether all that has followers has them in sync, as is saved.
  bool AllInSync() const;
  // The same, and the coordinator has heard of all ps that run.
  bool IsWell() const;
  // IsWell, and nothing moves.
  bool IsQuiet() const { return IsWell() && coordinator()->membership().Status().moves().empty(); }
  // What is amiss with a cluster that was left alone; empty: nothing, all serve, and all is in sync.
  std::string WhatIsMissing() const;
  // Judges all rows, and compares the copies. REQUIRES: nothing is missing, and the clients are done.
  void Judge();

  const Shape& shape() const { return shape_; }
  // Whether the coordinator that leads, if there is one, is with this ps; and that coordinator, or null.
  bool MayLead(uint32_t server) const { return server == (shape_.elected ? ballot_.leader : 0); }
  const Coordinator* coordinator() const;
  std::vector<std::unique_ptr<Client>>& clients() { return clients_; }
  const Directory& directory() const { return directory_; }
  // Answers to clients that were no acknowledgement.
  uint64_t resent() const;

  static uint32_t MachineOfClient(uint32_t client) { return 100 + client; }

 private:
  struct Machine {
    ProcessRef process;
    std::unique_ptr<Ps> ps;
    std::unique_ptr<Coordinator> coordinator;
    Thread election;
    bool ending = false;    // A former life is.
    bool starting = false;  // The next one is.
    bool disk_is_lost = false;
    bool came = true;       // Else it is the late one.
    bool went_back = true;  // To load_.
    bool may_load = false;  // Its checkpoint.dir has load_.
    int boots = 1;
  };

  std::string DataDirOf(uint32_t server) const { return absl::StrCat(disk_->folder(), "/machine-", server); }
  v1::Config ConfigOf(uint32_t server) const;
  // Kills all ps, each with its machine by that chance, and waits until they have ended.
  void EndServers(double with_machine);
  void StartClients();
  // Copies what each ps wrote of it to all.
  void GatherCheckpoint(const std::string& checkpoint) const;
  Coordinator::Options CoordinatorOptions(int64_t term) const;
  void RunElection(uint32_t server, const ProcessRef& process);
  // Calls `act` with the coordinator on its process, if one leads.
  void WithCoordinator(std::function<void(Coordinator*)> act);
  absl::StatusOr<std::string> CallCoordinator(Method method, std::string request, int64_t timeout_ms);
  void JudgeRows(uint32_t server, const ShardMap& map);
  void CompareCopies(const ShardMap& map);
  // Whether a client has the incarnation now.
  bool IsOpen(Incarnation worker) const;

  Shape shape_;
  Kernel* const kernel_;
  Network* const network_;
  Disk* const disk_;
  Ledger* const ledger_;
  Ballot ballot_;
  int64_t no_ballot_until_us_ = 0;  // Who is elected does not reach etcd.
  Directory directory_;
  std::vector<Machine> machines_;
  std::vector<std::unique_ptr<Client>> clients_;
  bool over_ = false;     // Nothing is started any more.
  bool all_end_ = false;  // All are being ended: nothing is started meanwhile.
  uint64_t resent_ = 0;   // Of clients that have ended.
  std::string load_;      // checkpoint.load; empty: the cluster has not gone back.
};

}  // namespace lodestone::simulation
