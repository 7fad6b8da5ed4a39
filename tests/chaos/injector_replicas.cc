// Faults of clusters whose shards have followers: what takes a copy away, and what comes between two processes.
#include <signal.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "tests/chaos/injector.h"

namespace lodestone::chaos {
namespace {

// After so long a ps that still owns shards keeps them: its lease and all that follows from its end are over.
constexpr int64_t kFailOverLeases = 3;
constexpr int64_t kFailOverMs = 3'000;
constexpr int kReplicaStatusTimeoutMs = 500;
constexpr int64_t kFollowMs = 3'000;    // A ps that follows nobody by then does not.
constexpr uint64_t kBootstrapMs = 200;  // A ps that gets its state is killed so long after it began, at most.

}  // namespace

void Injector::LearnOwners() {
  const absl::StatusOr<ShardMap> map = scene_.replicas->Map();
  if (!map.ok()) return;  // It does not tell just now.
  for (ShardId shard = 0; shard < owners_.size(); ++shard) owners_[shard] = map->OwnerOf(shard);
}

std::vector<ShardId> Injector::ShardsOf(const std::vector<uint32_t>& servers) const {
  std::vector<ShardId> shards;
  for (ShardId shard = 0; shard < owners_.size(); ++shard) {
    if (std::find(servers.begin(), servers.end(), owners_[shard]) != servers.end()) shards.push_back(shard);
  }
  return shards;
}

void Injector::WatchServers(const std::vector<uint32_t>& servers) { scene_.progress->Watch(ShardsOf(servers)); }

absl::Status Injector::AwaitInSync() {
  absl::Status in_sync;
  const absl::Status status = scene_.watch->Await(
      [&] {
        in_sync = scene_.replicas->InSync();
        return in_sync.ok();
      },
      "two copies of every shard");
  return absl::IsDeadlineExceeded(status) ? Annotate(status, in_sync.message()) : status;
}

absl::StatusOr<uint32_t> Injector::ChooseOwner(const Fault& fault) {
  LODESTONE_RETURN_IF_ERROR(AwaitInSync());
  LearnOwners();
  if (std::all_of(owners_.begin(), owners_.end(), [](uint32_t owner) { return owner == 0; })) {
    LODESTONE_RETURN_IF_ERROR(Kill({0}, 0));
    LODESTONE_RETURN_IF_ERROR(AwaitRecovery());
    LODESTONE_RETURN_IF_ERROR(AwaitInSync());
    LearnOwners();
  }
  for (uint32_t i = 0; i + 1 < scene_.cluster->servers(); ++i) {
    const uint32_t server = 1 + (fault.server - 1 + i) % (scene_.cluster->servers() - 1);
    if (!ShardsOf({server}).empty()) return server;
  }
  return fault.server;
}

absl::StatusOr<bool> Injector::FailOver(uint32_t server, FaultOutcome* outcome) {
  begun_ms_ = scene_.watch->NowMs();
  scene_.cluster->Kill(server);
  WatchServers({server});
  const int64_t until_ms = begun_ms_ + kFailOverLeases * scene_.lease_ms + kFailOverMs;
  bool moved = false;
  LODESTONE_RETURN_IF_ERROR(scene_.watch->Await(
      [&] {
        const absl::StatusOr<ShardMap> map = scene_.replicas->Map();
        moved = map.ok() && map->ShardsOf(server).empty() && map->Away(server);
        return moved || scene_.watch->NowMs() >= until_ms;
      },
      "a failover"));
  if (!moved) {
    outcome->kept = true;
    outcome->note = absl::StrCat("ps ", server, " had a shard that nobody else was in sync with: its disk stayed");
    LODESTONE_RETURN_IF_ERROR(scene_.cluster->Start(server));
    return false;
  }
  LODESTONE_RETURN_IF_ERROR(AwaitRecovery());
  outcome->outage_ms = scene_.progress->outage_ms();
  if (outcome->outage_ms.has_value()) {
    outcome->note = absl::StrCat("nothing was acknowledged for ps ", server, " for ", *outcome->outage_ms, " ms");
  } else {
    outcome->note = absl::StrCat("ps ", server, " owned nothing");
  }
  return true;
}

absl::Status Injector::Lose(const Fault& fault, FaultOutcome* outcome) {
  LODESTONE_ASSIGN_OR_RETURN(const uint32_t server, ChooseOwner(fault));
  LODESTONE_ASSIGN_OR_RETURN(const bool moved, FailOver(server, outcome));
  if (!moved) return absl::OkStatus();
  LODESTONE_RETURN_IF_ERROR(scene_.watch->Pass(fault.duration_ms));
  LODESTONE_RETURN_IF_ERROR(scene_.cluster->DeleteDisk(server));
  return scene_.cluster->Start(server);
}

absl::Status Injector::KillInBootstrap(const Fault& fault, FaultOutcome* outcome) {
  PsCluster* const cluster = scene_.cluster;
  LODESTONE_ASSIGN_OR_RETURN(const uint32_t lost, ChooseOwner(fault));
  LODESTONE_ASSIGN_OR_RETURN(const bool moved, FailOver(lost, outcome));
  if (!moved) return absl::OkStatus();
  LODESTONE_RETURN_IF_ERROR(scene_.watch->Pass(fault.duration_ms));
  LODESTONE_RETURN_IF_ERROR(cluster->DeleteDisk(lost));
  // Of two ps the next life of the lost one follows the other. Of more, others do, and may have the only copy of what
  // they own: they keep their disks.
  const bool again = cluster->servers() == 2;
  const uint32_t victim = again ? lost : 1 + lost % (cluster->servers() - 1);
  if (!again) {
    LODESTONE_RETURN_IF_ERROR(cluster->Start(lost));
    cluster->Kill(victim);
  }
  for (uint32_t i = 0; i < fault.times; ++i) {
    if (again) LODESTONE_RETURN_IF_ERROR(cluster->DeleteDisk(victim));
    // Slow links: what it gets shall take a while.
    for (uint32_t other = 0; other < cluster->servers(); ++other) {
      if (other != victim) cluster->SetBetween(victim, other, {.delay_ms = 1 + fault.delay_ms / 4});
    }
    LODESTONE_RETURN_IF_ERROR(cluster->Start(victim));
    LODESTONE_RETURN_IF_ERROR(AwaitBootstrap(victim));
    LODESTONE_RETURN_IF_ERROR(scene_.watch->Pass(static_cast<int64_t>(RandomBits(fault.random, i) % kBootstrapMs)));
    const auto status = cluster->StatusOf(victim, kReplicaStatusTimeoutMs);
    if (status.ok()) {
      absl::StrAppend(&outcome->note, ", ps ", victim, " died with the state of ",
                      status->replication().shards_followed(), " of ", status->replication().shards_following(),
                      " shards");
    }
    cluster->Kill(victim);
  }
  cluster->ClearBetween();
  return cluster->Start(victim);  // With what the last one has left.
}

absl::Status Injector::AwaitBootstrap(uint32_t server) {
  const int64_t until_ms = scene_.watch->NowMs() + kFollowMs;
  return scene_.watch->Await(
      [&] {
        if (scene_.watch->NowMs() >= until_ms) return true;
        if (!scene_.cluster->Serves(server)) return false;
        const auto status = scene_.cluster->StatusOf(server, kReplicaStatusTimeoutMs);
        return status.ok() && status->replication().shards_following() > 0;
      },
      absl::StrCat("ps ", server, " to follow others"));
}

absl::Status Injector::Zombie(const Fault& fault, FaultOutcome* outcome) {
  LODESTONE_ASSIGN_OR_RETURN(const uint32_t server, ChooseOwner(fault));
  begun_ms_ = scene_.watch->NowMs();
  scene_.cluster->Signal(server, SIGSTOP);
  WatchServers({server});
  const absl::Status status = scene_.watch->Pass(fault.duration_ms);
  outcome->outage_ms = scene_.progress->outage_ms();  // If others have taken over.
  outcome->note = absl::StrCat("ps ", server, " slept");
  if (scene_.cluster->Runs(server)) scene_.cluster->Signal(server, SIGCONT);
  return status;
}

absl::Status Injector::Partition(const Fault& fault) {
  PsCluster* const cluster = scene_.cluster;
  const uint32_t peer = fault.peer == kAllClients ? PsCluster::kClients : fault.peer;
  cluster->SetBetween(fault.server, peer, {.holds_to_b = fault.holds_to_peer, .holds_to_a = fault.holds_from_peer});
  WatchServers({fault.server, peer});
  const absl::Status status = scene_.watch->Pass(fault.duration_ms);
  if (fault.random % 2 == 0) cluster->CutBetween(fault.server, peer);  // Otherwise what was held arrives, late.
  cluster->ClearBetween();
  return status;
}

absl::Status Injector::SlowBetween(const Fault& fault) {
  scene_.cluster->SetBetween(fault.server, fault.peer, {.delay_ms = fault.delay_ms});
  WatchServers({fault.server, fault.peer});
  const absl::Status status = scene_.watch->Pass(fault.duration_ms);
  scene_.cluster->ClearBetween();
  return status;
}

absl::Status Injector::CutBetween(const Fault& fault) {
  scene_.cluster->CutBetween(fault.server, fault.peer);
  WatchServers({fault.server, fault.peer});
  return absl::OkStatus();
}

}  // namespace lodestone::chaos
