#include "tests/simulation/run.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "tests/simulation/cluster.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/kernel.h"
#include "tests/simulation/ledger.h"
#include "tests/simulation/network.h"

namespace lodestone::simulation {
namespace {

// In simulated time: how long a cluster that is left alone may take to heal, and must be well then.
constexpr int64_t kHealMsMax = 90'000;
constexpr int64_t kWellMs = 3'000;
// How long a move to a follower is waited for.
constexpr int64_t kHandOverMsMax = 2'000;

// Does things to a cluster.
class Faults {
 public:
  Faults(Cluster* cluster, Kernel* kernel, Network* network, Disk* disk, Ledger* ledger)
      : cluster_(*cluster), kernel_(*kernel), network_(*network), disk_(*disk), ledger_(*ledger) {
    pause_ms_ = kernel->Between(100, 1500);
  }

  // For so long, or until something is wrong.
  void Run(int64_t ms) {
    ended_ = false;
    const int64_t until_ms = kernel_.NowMs() + ms;
    kernel_.Sleep(1000 * kernel_.Between(200, 800));
    while (kernel_.NowMs() < until_ms && ledger_.failure().empty()) {
      One();
      ++count_;
      kernel_.Sleep(1000 * kernel_.Between(1, 2 * pause_ms_));
    }
    Heal();
  }
  // Has all ps write a named checkpoint, does things to them, and has the cluster go back to it. REQUIRES: Run has
  // ended. Something is wrong if it does not get well before.
  void GoBack(const std::string& checkpoint) {
    if (!Await(&Cluster::IsQuiet)) return ledger_.Fail("does not heal, and so goes back to no checkpoint");
    const size_t acknowledged = ledger_.acknowledged().size();
    if (const absl::Status written = cluster_.WriteCheckpoint(checkpoint); !written.ok()) {
      return ledger_.Fail(absl::StrCat("a checkpoint of all ps cannot be written: ", written.ToString()));
    }
    const size_t sent = ledger_.pushes().size();
    disks_may_be_lost_ = cluster_.shape().one_checkpoint_dir;  // Else the checkpoint is.
    Run(kernel_.Between(0, 5'000));
    disks_may_be_lost_ = true;
    if (!ledger_.failure().empty()) return;
    cluster_.EndClients();
    ledger_.GoBack(acknowledged, sent);
    cluster_.GoBack(checkpoint);
    ++times_back_;
  }
  // The number of ps changes. REQUIRES: Run has ended. Something is wrong if the cluster does not get well before.
  void ChangeServers() {
    const Shape& shape = cluster_.shape();
    if (shape.late || !shape.one_checkpoint_dir) return;
    if (!Await(&Cluster::IsQuiet)) return ledger_.Fail("does not heal, and so gets no other number of ps");
    cluster_.EndClients();
    cluster_.ChangeServers(static_cast<uint32_t>(kernel_.Between(shape.replicas, std::min(shape.replicas + 2, 4u))));
  }
  // All ps are started again with other cluster.replicas. REQUIRES: Run has ended.
  void ChangeReplicas() {
    const Shape& shape = cluster_.shape();
    const uint32_t begin = shape.servers - (shape.late ? 1 : 0);
    if (begin == 1) return;
    cluster_.ChangeReplicas(static_cast<uint32_t>(kernel_.Between(shape.elected ? 2 : 1, std::min(begin, 3u))));
  }
  uint64_t count() const { return count_; }
  uint64_t times_back() const { return times_back_; }

 private:
  void One() {
    const uint32_t servers = cluster_.shape().servers;
    if (servers > 1) Operate();
    const auto server = static_cast<uint32_t>(kernel_.Draw(servers));
    const uint64_t what = kernel_.Draw(100);
    if (what < 24) {
      const bool all = what < 2;
      for (uint32_t other = 0; other < servers; ++other) {
        if (!all && other != server) continue;
        cluster_.Kill(other, false);
        StartLater(other);
      }
    } else if (what < 28) {
      Later(0, [this, server, machine = kernel_.Chance(0.5)] {
        if (ended_) return;
        cluster_.Leave(server, machine);
        if (ended_) return cluster_.StartPs(server);
        StartLater(server);
      });
    } else if (what < 34) {
      KillInWrite(server);
    } else if (what < 48) {
      Stop(server);
    } else if (what < 64) {
      CutOff(server);
    } else if (what < 76) {
      kernel_.Trace(absl::StrCat("tears connections of ps ", server));
      network_.TearLines(server, AnyOther(server));
    } else if (what < 84) {
      network_.SetLoss(kernel_.Chance(0.5) ? 0 : 0.15);
      network_.SetDelays(kernel_.Between(50, 3'000), kernel_.Between(5'000, 400'000));
      disk_.SetSyncUs(kernel_.Between(100, 60'000));
      kernel_.Trace("network and disks have another pace");
    } else if (what < 90) {
      cluster_.Depose();
    } else {
      KillMachine(server);
    }
  }

  bool Await(bool (Cluster::*is_so)() const) {
    const int64_t until_ms = kernel_.NowMs() + kHealMsMax;
    while (kernel_.NowMs() < until_ms && ledger_.failure().empty() && !(cluster_.*is_so)()) {
      cluster_.UndoDrains();
      kernel_.Sleep(50'000);
    }
    return (cluster_.*is_so)();
  }

  // What an operator does: has a ps drained or not, or the late one come, or plans moves: of some shards to another ps,
  // or so that all have as many.
  void Operate() {
    if (kernel_.Chance(0.5)) return;
    const uint32_t last = cluster_.shape().servers - 1;
    if (cluster_.IsOut(last) && kernel_.Chance(0.2)) cluster_.Come();
    if (kernel_.Chance(0.2)) {
      v1::DrainRequest request;
      request.set_server(static_cast<uint32_t>(kernel_.Draw(cluster_.shape().servers)));
      request.set_undo(kernel_.Chance(0.6));
      return cluster_.Drain(request);
    }
    v1::MoveRequest request;
    request.set_level(kernel_.Chance(0.2));
    request.set_cancel(!request.level() && kernel_.Chance(0.1));
    if (!request.level()) request.add_shards(static_cast<uint32_t>(kernel_.Draw(cluster_.shape().shards)));
    request.set_server(static_cast<uint32_t>(kernel_.Draw(cluster_.shape().servers)));
    cluster_.PlanMoves(request);
  }

  void Later(int64_t ms, std::function<void()> what) { kernel_.After(1000 * ms, kernel_.world(), std::move(what)); }
  void StartLater(uint32_t server) {
    Later(kernel_.Chance(0.5) ? kernel_.Between(1, 200) : kernel_.Between(1, 3000), [this, server] {
      if (!ended_) cluster_.StartPs(server);
    });
  }
  uint32_t AnyOther(uint32_t server) {
    const uint32_t machines = cluster_.shape().servers + cluster_.shape().clients;
    auto other = static_cast<uint32_t>(kernel_.Draw(machines));
    if (other == server) other = (other + 1) % machines;
    const uint32_t servers = cluster_.shape().servers;
    return other < servers ? other : Cluster::MachineOfClient(other - servers);
  }
  void KillInWrite(uint32_t server) {
    if (!cluster_.Runs(server)) return;
    disk_.KillInWrite(cluster_.process(server), [this, server, process = cluster_.process(server)] {
      // A machine that writes runs on to its next wait, and reaches no other.
      if (cluster_.process(server) == process) cluster_.Kill(server, false);
      StartLater(server);
    });
  }
  void Stop(uint32_t server) {
    if (!cluster_.Runs(server) || cluster_.process(server)->stopped) return;
    const ProcessRef process = cluster_.process(server);
    kernel_.Trace(absl::StrCat("stops ", process->name));
    process->stopped = true;
    Later(kernel_.Between(20, 3000), [this, process] {
      if (!process->stopped) return;
      kernel_.Trace(absl::StrCat(process->name, " goes on"));
      kernel_.Continue(process);
    });
  }
  void CutOff(uint32_t server) {
    const uint32_t other = AnyOther(server);
    kernel_.Trace(absl::StrCat("cuts machine ", server, " off from ", other));
    network_.Cut(server, other);
    Later(kernel_.Between(20, 4000), [this] { network_.Heal(); });
  }
  // Only where it is promised that nothing is lost: what is acknowledged is on the disk, or the other copy has it.
  void KillMachine(uint32_t server) {
    const Shape& shape = cluster_.shape();
    // Whether the machine never gets its disk back. Where the coordinator is embedded, the disk of ps 0 has its state.
    const bool with_disk = disks_may_be_lost_ && shape.replicas > 1 && (server != 0 || shape.elected) &&
                           !cluster_.IsOut(server) && kernel_.Chance(0.3);
    if (!shape.syncs || with_disk) {
      if (shape.replicas == 1) return;
      if (!cluster_.IsWell() && kernel_.Chance(0.7)) return;
      // One loss at a time: a lease that ends at the same time, because heartbeats are late, is another one.
      Heal();
      kernel_.Sleep(1000 * kernel_.Between(shape.lease_ms, 2 * shape.lease_ms));
      if (!cluster_.IsWell() && !Await(&Cluster::IsWell)) return ledger_.Fail("does not heal, to lose a machine");
      ended_ = false;
    }
    const bool hands_over = !shape.syncs && !with_disk && kernel_.Chance(0.7);
    // What a coordinator on its machine knows would be gone too.
    if (hands_over && cluster_.MayLead(server)) server = (server + 1) % shape.servers;
    const HandOver handed_over = hands_over ? AwaitHandOverTo(server) : HandOver::kNone;
    if (handed_over == HandOver::kMayKnow) return;  // Its copy may be the only one.
    cluster_.Kill(server, true);
    if (with_disk) cluster_.LoseDisk(server);
    if (shape.syncs && !with_disk) return StartLater(server);
    // Of three copies two may go down together.
    if (shape.replicas == 3 && !with_disk && handed_over == HandOver::kNone && kernel_.Chance(0.5)) {
      const uint32_t other = (server + 1 + kernel_.Draw(shape.servers - 1)) % shape.servers;
      if (cluster_.Runs(other)) cluster_.Kill(other, true);
    }
    // Nothing else happens until there are all copies again.
    kernel_.Sleep(1000 * kernel_.Between(1, 3000));
    Heal();
    ended_ = false;
    if (!Await(&Cluster::IsWell)) ledger_.Fail("after the loss of a machine there are not all copies again");
  }
  enum class HandOver { kNone, kUntold, kMayKnow };
  // Has a shard that `server` follows move to it, if nothing else moves, and waits for the moment at which it is the
  // owner and was not told yet: its former owner has all that was acknowledged.
  HandOver AwaitHandOverTo(uint32_t server) {
    if (!cluster_.IsQuiet()) return HandOver::kNone;
    const std::vector<uint32_t>& followers = cluster_.coordinator()->membership().shards().followers();
    const auto followed = std::find(followers.begin(), followers.end(), server + 1);
    if (followed == followers.end()) return HandOver::kNone;
    const auto shard = static_cast<ShardId>(followed - followers.begin());
    v1::MoveRequest request;
    request.add_shards(shard);
    request.set_server(server);
    cluster_.PlanMoves(request);
    const int64_t until_ms = kernel_.NowMs() + kHandOverMsMax;
    for (; kernel_.NowMs() < until_ms; kernel_.Sleep(100)) {
      if (cluster_.coordinator() == nullptr) return HandOver::kMayKnow;
      if (cluster_.coordinator()->membership().shards().owners()[shard] == server) break;
    }
    if (kernel_.NowMs() >= until_ms) return cluster_.IsWell() ? HandOver::kNone : HandOver::kMayKnow;
    // A question of the owner's that is under way counts as told.
    const bool told = cluster_.coordinator()->membership().shards().equal().HolderOf(shard) == 0;
    if (told || cluster_.FetchesRoute(server)) return HandOver::kMayKnow;
    kernel_.Trace(absl::StrCat("ps ", server, " owns shard ", shard, " and was not told yet"));
    return HandOver::kUntold;
  }
  // Everybody runs, and all reach each other.
  void Heal() {
    ended_ = true;
    kernel_.Trace("leaves all alone");
    network_.Heal();
    network_.SetLoss(0);
    network_.SetDelays(300, 3000);
    disk_.SetSyncUs(2000);
    disk_.KillInWrite(nullptr, nullptr);
    for (uint32_t server = 0; server < cluster_.shape().servers; ++server) {
      const ProcessRef process = cluster_.process(server);
      if (cluster_.IsOut(server)) continue;
      if (process->stopped) kernel_.Continue(process);
      cluster_.StartPs(server);
    }
  }

  Cluster& cluster_;
  Kernel& kernel_;
  Network& network_;
  Disk& disk_;
  Ledger& ledger_;
  int64_t pause_ms_;
  uint64_t count_ = 0, times_back_ = 0;
  bool ended_ = false;
  bool disks_may_be_lost_ = true;
};

}  // namespace

RunResult Run(const RunOptions& options) {
  std::filesystem::remove_all(options.folder);
  std::filesystem::create_directories(options.folder);
  RunResult result;
  Ledger ledger;
  {
    Kernel kernel(options.seed, options.trace);
    Network network(&kernel);
    Disk disk(&kernel, options.folder);
    Cluster cluster(DrawShape(&kernel), &kernel, &network, &disk, &ledger);
    result.shape = cluster.shape().Describe();
    kernel.Trace(result.shape);
    const int64_t began_us = kernel.NowUs();
    bool over = false;
    Faults faults(&cluster, &kernel, &network, &disk, &ledger);
    kernel.After(0, kernel.world(), [&] {
      cluster.Start();
      faults.Run(options.faults_ms);
      for (const char* const checkpoint : {"first", "second"}) {
        const bool other_replicas = kernel.Chance(0.2), goes_back = kernel.Chance(0.3), others = kernel.Chance(0.2);
        if (!ledger.failure().empty() || (!other_replicas && !goes_back && !others)) break;
        if (other_replicas) faults.ChangeReplicas();
        if (goes_back) faults.GoBack(checkpoint);
        if (others && ledger.failure().empty()) faults.ChangeServers();
        if (ledger.failure().empty()) faults.Run(options.faults_ms / 2);
      }
      // Pushes go on: a follower that was left alone counts again with the next one (README.md).
      const int64_t well_by_ms = kernel.NowMs() + kHealMsMax;
      int64_t well_since_ms = kernel.NowMs();
      while (kernel.NowMs() < well_by_ms && ledger.failure().empty() && kernel.NowMs() < well_since_ms + kWellMs) {
        cluster.UndoDrains();
        kernel.Sleep(50'000);
        if (!cluster.IsWell()) well_since_ms = kernel.NowMs();
      }
      for (const auto& client : cluster.clients()) {
        if (client != nullptr) client->Stop();
      }
      const int64_t until_ms = kernel.NowMs() + kHealMsMax;
      while (kernel.NowMs() < until_ms && ledger.failure().empty() && !cluster.WhatIsMissing().empty()) {
        kernel.Sleep(50'000);
      }
      if (ledger.failure().empty()) {
        const std::string missing = cluster.WhatIsMissing();
        if (missing.empty()) {
          cluster.Judge();
        } else {
          ledger.Fail(absl::StrCat("does not heal: ", missing));
        }
      }
      kernel.Trace(ledger.failure().empty() ? "all is as promised" : "something is wrong");
      result.resent = cluster.resent();
      cluster.End();
      over = true;
    });
    kernel.RunUntil(Simulation::kNever, [&] { return over; });
    LODESTONE_CHECK(over);
    kernel.RunUntil(kernel.NowUs() + 10'000'000);
    result.hash = kernel.hash();
    result.events = kernel.events();
    result.faults = faults.count();
    result.times_back = faults.times_back();
    result.simulated_seconds = static_cast<double>(kernel.NowUs() - began_us) / 1e6;
  }
  result.failure = ledger.failure();
  result.pushes = ledger.pushes().size();
  result.acknowledged = ledger.acknowledged().size();
  std::filesystem::remove_all(options.folder);
  return result;
}

}  // namespace lodestone::simulation
