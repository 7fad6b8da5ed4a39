// Shards that are told to move while a ps dies, and a ps that leaves and comes back.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/random.h"
#include "common/base/status.h"
#include "tests/chaos/injector.h"
#include "tools/psctl/client/admin_client.h"

namespace lodestone::chaos {
namespace {

constexpr int kMoveCallMs = 2'000;
constexpr uint64_t kMoveMs = 60;  // A ps dies so long after shards were told to move, at most.

// Places of a fault's numbers in its stream; those before are the shards.
enum Draw : uint64_t { kDeath = 100, kVictim };

// Whether there may be no fault: the coordinator refuses, or has not answered.
bool IsRefusal(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status) || absl::IsUnavailable(status) ||
         absl::IsDeadlineExceeded(status);
}

}  // namespace

std::string Injector::CoordinatorAddress() const { return absl::StrCat("127.0.0.1:", scene_.cluster->PortOf(0)); }

absl::Status Injector::AwaitMoves() {
  return scene_.watch->Await(
      [&] {
        if (!scene_.cluster->Listens(0)) return false;
        const auto status = scene_.cluster->StatusOf(0, kMoveCallMs);
        return status.ok() && status->cluster().route_epoch() > 0 && status->cluster().moves().empty();
      },
      "the end of all moves");
}

absl::Status Injector::Reshard(const Fault& fault, FaultOutcome* outcome) {
  v1::MoveRequest request;
  request.set_server(fault.server);
  std::vector<ShardId> shards;
  for (uint64_t i = 0; i < fault.times; ++i) {
    shards.push_back(static_cast<ShardId>(RandomBits(fault.random, i) % owners_.size()));
  }
  std::sort(shards.begin(), shards.end());
  shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
  request.mutable_shards()->Add(shards.begin(), shards.end());
  const absl::Status planned = psctl::RequestMove(CoordinatorAddress(), request, kMoveCallMs).status();
  outcome->carried_out = planned.ok();
  if (IsRefusal(planned)) {
    outcome->note = std::string(planned.message());
    return AwaitMoves();
  }
  LODESTONE_RETURN_IF_ERROR(planned);
  outcome->note = absl::StrCat("shards ", absl::StrJoin(shards, ", "), " to ps ", fault.server);
  LODESTONE_RETURN_IF_ERROR(scene_.watch->Pass(static_cast<int64_t>(RandomBits(fault.random, kDeath) % kMoveMs)));
  const uint32_t victims[] = {fault.server, owners_[shards.front()], 0};  // And else nobody.
  if (const uint64_t drawn = RandomBits(fault.random, kVictim) % (std::size(victims) + 1); drawn < std::size(victims)) {
    const uint32_t victim = victims[drawn];
    absl::StrAppend(&outcome->note, ", ps ", victim, " died");
    LODESTONE_RETURN_IF_ERROR(Kill({victim}, fault.duration_ms));
  }
  LODESTONE_RETURN_IF_ERROR(AwaitMoves());
  scene_.progress->Watch(shards);
  return absl::OkStatus();
}

absl::Status Injector::Drain(const Fault& fault, FaultOutcome* outcome) {
  PsCluster* const cluster = scene_.cluster;
  const uint32_t server = fault.server;
  v1::DrainRequest request;
  request.set_server(server);
  WatchServers({server});
  const absl::Status planned = psctl::RequestDrain(CoordinatorAddress(), request, kMoveCallMs).status();
  outcome->carried_out = planned.ok();
  if (IsRefusal(planned)) {
    outcome->note = std::string(planned.message());
    return Fill(server);
  }
  LODESTONE_RETURN_IF_ERROR(planned);
  LODESTONE_RETURN_IF_ERROR(AwaitMoves());
  LODESTONE_RETURN_IF_ERROR(scene_.watch->Await(
      [&] {
        const auto status = cluster->StatusOf(server, kMoveCallMs);
        return status.ok() && status->server().shards_owned() == 0 && status->replication().shards_following() == 0;
      },
      absl::StrCat("ps ", server, " to hold nothing")));
  cluster->Kill(server);
  if (cluster->own_disks()) LODESTONE_RETURN_IF_ERROR(cluster->DeleteDisk(server));  // Another machine comes.
  LODESTONE_RETURN_IF_ERROR(scene_.watch->Pass(fault.duration_ms));
  LODESTONE_RETURN_IF_ERROR(cluster->Start(server));
  LODESTONE_RETURN_IF_ERROR(
      scene_.watch->Await([&] { return cluster->Serves(server); }, absl::StrCat("ps ", server, " to take part again")));
  return Fill(server);
}

absl::Status Injector::Fill(uint32_t server) {
  v1::DrainRequest undo;
  undo.set_server(server);
  undo.set_undo(true);
  v1::MoveRequest level;
  level.set_level(true);
  LODESTONE_RETURN_IF_ERROR(scene_.watch->Await(
      [&] {
        return psctl::RequestDrain(CoordinatorAddress(), undo, kMoveCallMs).ok() &&
               psctl::RequestMove(CoordinatorAddress(), level, kMoveCallMs).ok();
      },
      absl::StrCat("ps ", server, " to get shards again")));
  LODESTONE_RETURN_IF_ERROR(AwaitMoves());
  LearnOwners();
  WatchServers({server});
  return absl::OkStatus();
}

}  // namespace lodestone::chaos
