#include "server/coordinator/shard_moves.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "server/coordinator/cluster_options.h"
#include "server/coordinator/member_table.h"
#include "server/coordinator/shard_assignment.h"

namespace lodestone::server {
namespace {

constexpr uint32_t kShardsAtOnce = 8;  // That go from one server to another.

}  // namespace

ShardMoves::ShardMoves(const ClusterOptions* options, const MemberTable* members, ShardAssignment* shards)
    : options_(*options), members_(*members), shards_(*shards), plan_(options->shards, options->servers) {}

bool ShardMoves::Follows(uint32_t server, ShardId shard) const { return shards_.followers()[shard] == server + 1; }

bool ShardMoves::Lives(uint32_t server) const {
  const MemberPlace& place = members_.servers()[server];
  return members_.Alive(place) && !place.silent;
}

uint32_t ShardMoves::OwnedBy(uint32_t server) const {
  return static_cast<uint32_t>(std::count(shards_.owners().begin(), shards_.owners().end(), server));
}

absl::Status ShardMoves::CheckTakes(uint32_t server) const {
  if (!Lives(server)) {
    return absl::FailedPreconditionError(absl::StrCat("ps ", server, " is away: no shard can move there"));
  }
  if (!plan_.IsDraining(server)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("ps ", server, " drains, and takes no shard: undo that first (psctl drain ", server, " --undo)"));
}

absl::Status ShardMoves::CheckShard(ShardId shard) const {
  if (shard < options_.shards) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("there is no shard ", shard, " in this cluster: cluster.shards is ",
                                                 options_.shards, ", and shards count from 0"));
}

absl::Status ShardMoves::CheckServed(ShardId shard) const {
  if (!shards_.IsUnserved(shard)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("shard ", shard, " of ps ", shards_.owners()[shard],
                                                    " is not served, and cannot move: see psctl status"));
}

absl::Status ShardMoves::CheckPlans() const {
  if (!options_.replicated()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "with cluster.replicas: 2 no move is planned: a ps that is shut down gives its shards to their followers, and "
      "another one follows them then");
}

std::vector<bool> ShardMoves::Living() const {
  std::vector<bool> living(options_.servers);
  for (uint32_t server = 0; server < options_.servers; ++server) living[server] = Lives(server);
  return living;
}

std::vector<bool> ShardMoves::Present() const {
  std::vector<bool> present(options_.servers);
  for (uint32_t server = 0; server < options_.servers; ++server) {
    present[server] = members_.Alive(members_.servers()[server]);
  }
  return present;
}

uint32_t ShardMoves::Cancel(const v1::MoveRequest& request) {
  uint32_t cancelled = 0;
  for (const ShardId shard : request.shards()) cancelled += plan_.Forget(shard);
  for (ShardId shard = 0; request.shards().empty() && shard < options_.shards; ++shard)
    cancelled += plan_.Forget(shard);
  return cancelled;
}

absl::StatusOr<v1::MoveResponse> ShardMoves::Move(const v1::MoveRequest& request) {
  v1::MoveResponse response;
  LODESTONE_RETURN_IF_ERROR(CheckPlans());
  for (const ShardId shard : request.shards()) LODESTONE_RETURN_IF_ERROR(CheckShard(shard));
  if (request.cancel()) {
    response.set_cancelled(Cancel(request));
  } else if (request.level()) {
    plan_.PlanLevel(shards_.owners(), Present());
  } else {
    LODESTONE_RETURN_IF_ERROR(CheckTakes(request.server()));
    for (const ShardId shard : request.shards()) LODESTONE_RETURN_IF_ERROR(CheckServed(shard));
    for (const ShardId shard : request.shards()) plan_.Plan(shard, request.server());
  }
  Advance();
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const bool named = std::find(request.shards().begin(), request.shards().end(), shard) != request.shards().end();
    if (named || request.level()) response.set_planned(response.planned() + plan_.TargetOf(shard).has_value());
  }
  return response;
}

absl::StatusOr<v1::DrainResponse> ShardMoves::Drain(const v1::DrainRequest& request) {
  LODESTONE_RETURN_IF_ERROR(CheckPlans());
  const uint32_t server = request.server();
  if (request.undo()) {
    for (ShardId shard = 0; shard < options_.shards; ++shard) {
      if (plan_.IsDraining(server) && shards_.owners()[shard] == server) plan_.Forget(shard);
    }
  } else {
    bool takes = false;
    for (uint32_t other = 0; other < options_.servers; ++other) {
      takes = takes || (other != server && CheckTakes(other).ok());
    }
    if (!takes) {
      return absl::FailedPreconditionError(
          absl::StrCat("no other ps could take the shards of ps ", server, ": each is away, or drains"));
    }
  }
  plan_.SetDraining(server, !request.undo());
  Advance();
  v1::DrainResponse response;
  response.set_shards_owned(OwnedBy(server));
  return response;
}

void ShardMoves::Plan(const std::vector<RebalanceMove>& moves) {
  for (const RebalanceMove& move : moves) plan_.Plan(move.shard, move.to);
  if (!moves.empty()) Advance();
}

Rebalancer::Plan ShardMoves::plan() const {
  Rebalancer::Plan plan{.any = plan_.any(), .draining = std::vector<bool>(options_.servers), .living = Living()};
  for (uint32_t server = 0; server < options_.servers; ++server) plan.draining[server] = plan_.IsDraining(server);
  return plan;
}

void ShardMoves::DropEnded() {
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const std::optional<uint32_t> target = plan_.TargetOf(shard);
    const uint32_t follower = shards_.followers()[shard];
    if (target == shards_.owners()[shard]) plan_.Forget(shard);
    if (follower == 0) continue;
    // The plan was given up, or changed, while a copy was made; or that copy has ended.
    const bool stands = target.has_value() && (!Lives(*target) || !Lives(shards_.owners()[shard]));
    if (target != follower - 1 || (stands && !shards_.in_sync()[shard])) {
      shards_.SetMoveFollower(shard, std::nullopt);
    }
  }
}

void ShardMoves::HandOverReady() {
  for (const ShardId shard : shards_.HandOver()) plan_.Forget(shard);
  std::vector<ShardId> ready;
  std::set<std::pair<uint32_t, uint32_t>> lagging;  // From and to.
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const std::optional<uint32_t> target = plan_.TargetOf(shard);
    if (!target.has_value() || !Follows(*target, shard) || shards_.handovers()[shard] > 0) continue;
    if (shards_.in_sync()[shard] && Lives(*target)) {
      ready.push_back(shard);
    } else {
      lagging.emplace(shards_.owners()[shard], *target);
    }
  }
  std::erase_if(ready, [&](ShardId shard) {
    return lagging.contains({shards_.owners()[shard], *plan_.TargetOf(shard)});
  });
  if (!ready.empty()) shards_.AskToGiveUp(ready);
}

void ShardMoves::Advance() {
  if (!shards_.mapped() || options_.replicated()) return;
  plan_.PlanDrains(shards_.owners(), Living());
  if (!plan_.any() && !shards_.HasFollowers()) return;
  DropEnded();
  HandOverReady();
  Begin();
}

void ShardMoves::Begin() {
  std::vector<bool> busy(options_.servers);
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const uint32_t follower = shards_.followers()[shard];
    if (follower > 0) busy[shards_.owners()[shard]] = busy[follower - 1] = true;
  }
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> begun;  // Shards, by from and to.
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const std::optional<uint32_t> target = plan_.TargetOf(shard);
    const uint32_t owner = shards_.owners()[shard];
    if (!target.has_value() || shards_.followers()[shard] > 0) continue;
    if (shards_.IsUnserved(shard) || !Lives(owner) || !Lives(*target)) continue;
    const auto pair = begun.find({owner, *target});
    if (pair == begun.end() ? busy[owner] || busy[*target] : pair->second == kShardsAtOnce) continue;
    shards_.SetMoveFollower(shard, *target);
    busy[owner] = busy[*target] = true;
    ++begun[{owner, *target}];
  }
}

void ShardMoves::FillStatus(v1::ClusterStatus* status) const {
  for (ShardId shard = 0; shards_.mapped() && shard < options_.shards; ++shard) {
    const std::optional<uint32_t> target = plan_.TargetOf(shard);
    if (!target.has_value()) continue;
    const uint32_t owner = shards_.owners()[shard];
    v1::ShardMove* const move = status->add_moves();
    move->set_shard(shard);
    move->set_from(owner);
    move->set_to(*target);
    move->set_copying(Follows(*target, shard));
    if (shards_.handovers()[shard] > 0) move->set_waiting_for(absl::StrCat("ps ", owner, " to give it up"));
    if (shards_.IsUnserved(shard)) move->set_waiting_for(absl::StrCat("ps ", owner, ", which does not serve it"));
    if (!Lives(*target)) move->set_waiting_for(absl::StrCat("ps ", *target, ", which is away"));
  }
  for (v1::MemberStatus& server : *status->mutable_servers()) server.set_draining(plan_.IsDraining(server.index()));
}

void ShardMoves::Restore(const v1::CoordinatorState& state) {
  if (state.servers() == options_.servers && !options_.replicated()) plan_.Restore(state);
}

}  // namespace lodestone::server
