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
#include "server/coordinator/zones.h"

namespace lodestone::server {
namespace {

constexpr uint32_t kShardsAtOnce = 8;  // That go from one server to another.

}  // namespace

ShardMoves::ShardMoves(const ClusterOptions* options, const MemberTable* members, ShardAssignment* shards)
    : options_(*options), members_(*members), shards_(*shards), plan_(options->shards, options->servers) {}

bool ShardMoves::Follows(uint32_t server, ShardId shard) const { return shards_.followers()[shard] == server + 1; }

bool ShardMoves::Learns(uint32_t server, ShardId shard) const { return shards_.learners()[shard] == server + 1; }

bool ShardMoves::SharesZone(uint32_t server, ShardId shard) const {
  return ShareZone(members_.servers()[server], members_.servers()[shards_.owners()[shard]]);
}

bool ShardMoves::AnySharesZone() const {
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const uint32_t follower = shards_.followers()[shard];
    if (follower > 0 && SharesZone(follower - 1, shard)) return true;
  }
  return false;
}

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

bool ShardMoves::KnowsLearners(uint32_t server) const {
  const MemberPlace& place = members_.servers()[server];
  return place.data.has_value() && place.data->knows_learners();
}

absl::Status ShardMoves::CheckPlans() const {
  if (!options_.replicated()) return absl::OkStatus();
  for (const MemberPlace& place : members_.servers()) {
    if (!members_.Alive(place) || KnowsLearners(place.index)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("with cluster.replicas: 2 no shard moves while a ps is of an older version, and ps ", place.index,
                     " is: start it again with this version"));
  }
  return absl::OkStatus();
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
  if (!request.cancel()) LODESTONE_RETURN_IF_ERROR(CheckPlans());
  for (const ShardId shard : request.shards()) LODESTONE_RETURN_IF_ERROR(CheckShard(shard));
  if (request.cancel()) {
    response.set_cancelled(Cancel(request));
    if (request.shards().empty()) plan_.SetLevelsFollowers(false);
  } else if (request.level()) {
    plan_.PlanLevel(shards_.owners(), Present());
    plan_.SetLevelsFollowers(options_.replicated());
  } else {
    LODESTONE_RETURN_IF_ERROR(CheckTakes(request.server()));
    for (const ShardId shard : request.shards()) LODESTONE_RETURN_IF_ERROR(CheckServed(shard));
    for (const ShardId shard : request.shards()) plan_.Plan(shard, request.server());
  }
  Advance();
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const bool named = std::find(request.shards().begin(), request.shards().end(), shard) != request.shards().end();
    if (named || request.level()) {
      const bool changes = plan_.TargetOf(shard).has_value() || (request.level() && shards_.learners()[shard] > 0);
      response.set_planned(response.planned() + changes);
    }
  }
  if (request.level()) response.set_planned(response.planned() + static_cast<uint32_t>(NewFollowers().size()));
  return response;
}

absl::StatusOr<v1::DrainResponse> ShardMoves::Drain(const v1::DrainRequest& request) {
  if (!request.undo()) LODESTONE_RETURN_IF_ERROR(CheckPlans());
  const uint32_t server = request.server();
  if (request.undo()) {
    for (ShardId shard = 0; shard < options_.shards; ++shard) {
      if (plan_.IsDraining(server) && shards_.owners()[shard] == server) plan_.Forget(shard);
    }
  } else {
    uint32_t takes = 0;
    for (uint32_t other = 0; other < options_.servers; ++other) takes += other != server && CheckTakes(other).ok();
    if (takes == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("no other ps could take the shards of ps ", server, ": each is away, or drains"));
    }
    if (options_.replicated() && takes == 1) {
      return absl::FailedPreconditionError(
          absl::StrCat("with cluster.replicas: 2 two other ps are to hold the shards of ps ", server,
                       ", and only one is there and does not drain"));
    }
  }
  plan_.SetDraining(server, !request.undo());
  Advance();
  v1::DrainResponse response;
  response.set_shards_owned(OwnedBy(server));
  if (options_.replicated()) {
    const std::vector<uint32_t>& followers = shards_.followers();
    response.set_shards_following(static_cast<uint32_t>(std::count(followers.begin(), followers.end(), server + 1)));
  }
  return response;
}

void ShardMoves::Plan(const std::vector<RebalanceMove>& moves) {
  if (moves.empty()) return;
  for (const RebalanceMove& move : moves) plan_.Plan(move.shard, move.to);
  if (options_.replicated()) plan_.SetLevelsFollowers(true);  // When the owners have changed.
  Advance();
}

Rebalancer::Plan ShardMoves::plan() const {
  const bool any = plan_.any() || plan_.levels_followers() || shards_.HasLearners() || shards_.HasHandovers();
  const absl::Status plans = CheckPlans();
  return {.any = any, .draining = plan_.draining(), .living = Living(), .why_not = std::string(plans.message())};
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
  std::set<std::pair<uint32_t, uint32_t>> lagging;           // From and to.
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> handed;  // Shards, by from and to.
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const std::optional<uint32_t> target = plan_.TargetOf(shard);
    if (!target.has_value() || shards_.IsUnserved(shard)) continue;
    if (!Follows(*target, shard) && !Learns(*target, shard)) continue;
    uint32_t& at_once = handed[{shards_.owners()[shard], *target}];
    if (shards_.handovers()[shard] > 0) {
      ++at_once;
    } else if (Follows(*target, shard) && shards_.in_sync()[shard] && Lives(*target)) {
      if (at_once++ < kShardsAtOnce) ready.push_back(shard);
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
  if (!shards_.mapped()) return;
  if (!options_.replicated()) {
    plan_.PlanDrains(shards_.owners(), {}, Living());
    if (!plan_.any() && !shards_.HasFollowers()) return;
    DropEnded();
    HandOverReady();
    return Begin();
  }
  const std::vector<bool>& draining = plan_.draining();
  const bool drains = std::find(draining.begin(), draining.end(), true) != draining.end();
  shards_.SetDraining(draining);
  plan_.PlanDrains(shards_.owners(), shards_.followers(), Living());
  if (!plan_.any() && !drains && !plan_.levels_followers() && !shards_.HasLearners() && !shards_.HasHandovers() &&
      !AnySharesZone()) {
    return;
  }
  DropEndedLearners();
  HandOverReady();
  BeginLearners();
}

void ShardMoves::DropEndedLearners() {
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (plan_.TargetOf(shard) == shards_.owners()[shard]) plan_.Forget(shard);
    const std::optional<uint32_t> target = plan_.TargetOf(shard);
    if (!target.has_value() || !Follows(*target, shard)) shards_.AskToKeep(shard);
    const uint32_t learner = shards_.learners()[shard];
    if (learner == 0) continue;
    // The plan was given up, or changed, while a copy was made; or nobody is there to learn from.
    const uint32_t follower = shards_.followers()[shard];
    const bool relieves = !target.has_value() && !plan_.IsDraining(learner - 1) && follower > 0 &&
                          (plan_.IsDraining(follower - 1) || plan_.levels_followers() ||
                           (SharesZone(follower - 1, shard) && !SharesZone(learner - 1, shard)));
    if ((target != learner - 1 && !relieves) || shards_.IsUnserved(shard)) shards_.SetLearner(shard, std::nullopt);
  }
}

std::vector<ShardMoves::NewFollower> ShardMoves::NewFollowers() const {
  std::vector<NewFollower> changes;
  std::vector<uint32_t> held(options_.servers);  // Copies, once learners have taken their places.
  std::vector<bool> takes(options_.servers);
  for (uint32_t server = 0; server < options_.servers; ++server) {
    takes[server] = Lives(server) && !plan_.IsDraining(server);
  }
  const auto follower_of = [this](ShardId shard) {
    return shards_.learners()[shard] > 0 ? shards_.learners()[shard] : shards_.followers()[shard];
  };
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    ++held[shards_.owners()[shard]];
    if (follower_of(shard) > 0) ++held[follower_of(shard) - 1];
  }
  const bool levels = plan_.levels_followers() && !plan_.any();
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const uint32_t follower = follower_of(shard);
    if (follower == 0 || shards_.learners()[shard] > 0 || plan_.TargetOf(shard).has_value()) continue;
    const bool drains = plan_.IsDraining(follower - 1), shares_zone = SharesZone(follower - 1, shard);
    if (!drains && !levels && !shares_zone) continue;
    std::optional<uint32_t> best;
    const auto rank = [&](uint32_t server) { return std::pair(SharesZone(server, shard), held[server]); };
    for (uint32_t server = 0; server < options_.servers; ++server) {
      if (server == shards_.owners()[shard] || server == follower - 1 || !takes[server]) continue;
      if (!best.has_value() || rank(server) < rank(*best)) best = server;
    }
    if (!drains) {
      // Each change parts copies that share a zone, or else brings two numbers nearer to each other, so that they end.
      const bool parts = best.has_value() && shares_zone && !SharesZone(*best, shard);
      const bool nearer =
          best.has_value() && levels && SharesZone(*best, shard) == shares_zone && held[*best] + 1 < held[follower - 1];
      if (!parts && !nearer) continue;
    }
    changes.push_back({shard, best});
    if (!best.has_value()) continue;
    --held[follower - 1];
    ++held[*best];
  }
  return changes;
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

void ShardMoves::BeginLearners() {
  std::vector<bool> busy(options_.servers);
  bool changes = plan_.any();
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const uint32_t learner = shards_.learners()[shard];
    if (learner > 0) busy[shards_.owners()[shard]] = busy[learner - 1] = changes = true;
  }
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> begun;  // Shards, by from and to.
  const auto begin = [&](ShardId shard, uint32_t to) {
    const uint32_t owner = shards_.owners()[shard];
    if (shards_.learners()[shard] > 0 || shards_.handovers()[shard] > 0 || !WhyNotLearnt(shard, to).empty()) return;
    const auto pair = begun.find({owner, to});
    if (pair == begun.end() ? busy[owner] || busy[to] : pair->second == kShardsAtOnce) return;
    shards_.SetLearner(shard, to);
    busy[owner] = busy[to] = true;
    ++begun[{owner, to}];
  };
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const std::optional<uint32_t> target = plan_.TargetOf(shard);
    if (target.has_value() && !Follows(*target, shard)) begin(shard, *target);
  }
  for (const NewFollower& change : NewFollowers()) {
    changes = true;
    if (change.server.has_value()) begin(change.shard, *change.server);
  }
  if (!changes) plan_.SetLevelsFollowers(false);
}

std::string ShardMoves::WhyNotLearnt(ShardId shard, uint32_t server) const {
  const uint32_t owner = shards_.owners()[shard];
  if (shards_.IsUnserved(shard)) return absl::StrCat("ps ", owner, ", which does not serve it");
  for (const uint32_t each : {owner, server}) {
    if (!Lives(each)) return absl::StrCat("ps ", each, ", which is away");
    if (!KnowsLearners(each)) return absl::StrCat("ps ", each, ", to be started again with this version");
  }
  return shards_.in_sync()[shard] ? "" : "its follower to be in sync";
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
    move->set_copying(options_.replicated() ? Learns(*target, shard) : Follows(*target, shard));
    if (options_.replicated()) move->set_waiting_for(WhyNotLearnt(shard, *target));
    if (shards_.handovers()[shard] > 0) move->set_waiting_for(absl::StrCat("ps ", owner, " to give it up"));
    if (shards_.IsUnserved(shard)) move->set_waiting_for(absl::StrCat("ps ", owner, ", which does not serve it"));
    if (!Lives(*target)) move->set_waiting_for(absl::StrCat("ps ", *target, ", which is away"));
  }
  if (shards_.mapped() && options_.replicated()) FillNewFollowers(status);
  for (v1::MemberStatus& server : *status->mutable_servers()) server.set_draining(plan_.IsDraining(server.index()));
}

void ShardMoves::FillNewFollowers(v1::ClusterStatus* status) const {
  const auto add = [&](ShardId shard) {
    v1::ShardMove* const move = status->add_moves();
    move->set_shard(shard);
    move->set_of_follower(true);
    move->set_from(shards_.followers()[shard] - 1);
    return move;
  };
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const uint32_t learner = shards_.learners()[shard];
    if (learner == 0 || shards_.followers()[shard] == 0 || plan_.TargetOf(shard).has_value()) continue;
    v1::ShardMove* const move = add(shard);
    move->set_to(learner - 1);
    move->set_copying(true);
  }
  for (const NewFollower& change : NewFollowers()) {
    v1::ShardMove* const move = add(change.shard);
    move->set_to(change.server.value_or(move->from()));
    move->set_waiting_for(change.server.has_value() ? WhyNotLearnt(change.shard, *change.server)
                                                    : "another ps that can follow it");
  }
}

void ShardMoves::Restore(const v1::CoordinatorState& state) {
  if (state.servers() == options_.servers) plan_.Restore(state);
}

}  // namespace lodestone::server
