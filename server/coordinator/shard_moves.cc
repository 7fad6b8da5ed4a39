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
    : options_(*options),
      members_(*members),
      shards_(*shards),
      plan_(options->shards, options->servers, options->first_servers()) {
  shards_.SetDraining(plan_.draining());
}

bool ShardMoves::Follows(uint32_t server, ShardId shard) const { return shards_.copies().Follows(server, shard); }

bool ShardMoves::IsInSync(uint32_t server, ShardId shard) const { return shards_.copies().IsInSync(server, shard); }

bool ShardMoves::Learns(uint32_t server, ShardId shard) const { return shards_.learners()[shard] == server + 1; }

bool ShardMoves::AnyToPart() const {
  std::map<std::string, uint32_t> takes;  // A server that can follow, by zone; those without one are each by itself.
  for (uint32_t server = 0; server < options_.servers; ++server) {
    const std::string& zone = members_.servers()[server].zone;
    if (Lives(server) && !plan_.IsDraining(server)) takes[zone.empty() ? absl::StrCat("\n", server) : zone] = server;
  }
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    for (const uint32_t before : {shards_.copies().firsts()[shard], shards_.copies().seconds()[shard]}) {
      if (before == 0 || !shards_.SharesZone(before - 1, shard)) continue;
      const bool parts = std::any_of(takes.begin(), takes.end(), [&](const auto& zone) {
        return shards_.owners()[shard] != zone.second && !Follows(zone.second, shard) &&
               !shards_.SharesZone(zone.second, shard, before - 1);
      });
      if (parts) return true;
    }
  }
  return false;
}

bool ShardMoves::Lives(uint32_t server) const {
  const MemberPlace& place = members_.servers()[server];
  return members_.Alive(place) && !place.silent;
}

bool ShardMoves::IsNew(uint32_t server) const { return members_.servers()[server].incarnation == 0; }

bool ShardMoves::IsKept(uint32_t server) const {
  if (!IsDraining(server)) return false;
  if (IsNew(server)) return true;
  if (members_.Alive(members_.servers()[server])) return false;
  for (ShardId shard = 0; shards_.mapped() && shard < options_.shards; ++shard) {
    if (shards_.owners()[shard] == server || Follows(server, shard)) return false;
  }
  return true;
}

void ShardMoves::TakePlace(uint32_t server, bool served) {
  if (!options_.rebalance.automatic && !served) return;
  plan_.SetDraining(server, false);
  shards_.SetDraining(plan_.draining());
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
    return absl::FailedPreconditionError(absl::StrCat("with cluster.replicas: ", options_.replicas,
                                                      " no shard moves while a ps is of an older version, and ps ",
                                                      place.index, " is: start it again with this version"));
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
    if (IsDraining(server) && IsNew(server)) {
      return absl::FailedPreconditionError(absl::StrCat("no ps has come to place ", server, " yet: `psctl add ", server,
                                                        "` waits for one, and lets it own shards"));
    }
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
    if (takes < options_.followers() + 1) {
      return absl::FailedPreconditionError(absl::StrCat(
          "with cluster.replicas: ", options_.replicas, " as many other ps are to hold the shards of ps ", server,
          ", and only ", takes, takes == 1 ? " is" : " are", " there and ", takes == 1 ? "does" : "do", " not drain"));
    }
  }
  plan_.SetDraining(server, !request.undo());
  Advance();
  v1::DrainResponse response;
  response.set_shards_owned(OwnedBy(server));
  for (ShardId shard = 0; options_.replicated() && shard < options_.shards; ++shard) {
    response.set_shards_following(response.shards_following() + Follows(server, shard));
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
    } else if (IsInSync(*target, shard) && Lives(*target)) {
      if (at_once++ < kShardsAtOnce) ready.push_back(shard);
    } else {
      lagging.emplace(shards_.owners()[shard], *target);
    }
  }
  std::erase_if(ready, [&](ShardId shard) {
    return lagging.contains({shards_.owners()[shard], *plan_.TargetOf(shard)});
  });
  for (const ShardId shard : ready) shards_.PutFirst(*plan_.TargetOf(shard), shard);
  if (!ready.empty()) shards_.AskToGiveUp(ready);
}

bool ShardMoves::MayOwn(uint32_t server, ShardId shard) const {
  return Lives(server) && (!options_.replicated() || !Follows(server, shard) || IsInSync(server, shard));
}

std::vector<uint32_t> ShardMoves::NextOwners() const {
  std::vector<uint32_t> next(options_.shards);
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    for (const uint32_t server : shards_.copies().Of(shard)) {
      if (next[shard] == 0 && MayOwn(server, shard) && !plan_.IsDraining(server)) next[shard] = server + 1;
    }
  }
  return next;
}

void ShardMoves::Advance() {
  if (!shards_.mapped()) return;
  const auto may_own = [this](uint32_t server, ShardId shard) { return MayOwn(server, shard); };
  if (!options_.replicated()) {
    plan_.PlanDrains(shards_.owners(), {}, may_own);
    if (!plan_.any() && !shards_.HasFollowers()) return;
    DropEnded();
    HandOverReady();
    return Begin();
  }
  bool drains = false;
  for (uint32_t server = 0; server < options_.servers; ++server) drains |= IsDraining(server) && !IsNew(server);
  shards_.SetDraining(plan_.draining());
  plan_.PlanDrains(shards_.owners(), NextOwners(), may_own);
  if (!plan_.any() && !drains && !plan_.levels_followers() && !shards_.HasLearners() && !shards_.HasHandovers() &&
      !AnyToPart()) {
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
    const bool relieves = !target.has_value() && Relieves(learner - 1, shard);
    if ((target != learner - 1 && !relieves) || shards_.IsUnserved(shard)) shards_.SetLearner(shard, std::nullopt);
  }
}

bool ShardMoves::Relieves(uint32_t learner, ShardId shard) const {
  if (plan_.IsDraining(learner) || shards_.copies().Of(shard).empty()) return false;
  const uint32_t before = shards_.ReplacedByLearner(shard);
  return plan_.IsDraining(before) || plan_.levels_followers() ||
         (shards_.SharesZone(before, shard) && !shards_.SharesZone(learner, shard, before));
}

std::vector<ShardMoves::NewFollower> ShardMoves::NewFollowers() const {
  std::vector<uint32_t> held(options_.servers);  // Copies, once learners have taken their places.
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    ++held[shards_.owners()[shard]];
    const std::vector<uint32_t> followers = shards_.copies().Of(shard);
    for (const uint32_t follower : followers) ++held[follower];
    if (shards_.learners()[shard] == 0 || followers.empty()) continue;
    ++held[shards_.learners()[shard] - 1];
    --held[shards_.ReplacedByLearner(shard)];
  }
  std::vector<NewFollower> changes;
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (shards_.learners()[shard] > 0 || plan_.TargetOf(shard).has_value()) continue;
    for (const uint32_t before : shards_.copies().Of(shard)) {
      const std::optional<NewFollower> change = InPlaceOf(before, shard, held);
      if (!change.has_value()) continue;
      changes.push_back(*change);
      if (!change->server.has_value()) continue;
      --held[before];
      ++held[*change->server];
      break;  // The other one's turn comes when this one is relieved.
    }
  }
  return changes;
}

std::optional<ShardMoves::NewFollower> ShardMoves::InPlaceOf(uint32_t before, ShardId shard,
                                                             const std::vector<uint32_t>& held) const {
  const bool drains = plan_.IsDraining(before), shares_zone = shards_.SharesZone(before, shard);
  const bool levels = plan_.levels_followers() && !plan_.any();
  if (!drains && !levels && !shares_zone) return std::nullopt;
  const auto shares = [&](uint32_t server) { return shards_.SharesZone(server, shard, before); };
  const auto rank = [&](uint32_t server) { return std::pair(shares(server), held[server]); };
  std::optional<uint32_t> best;
  for (uint32_t server = 0; server < options_.servers; ++server) {
    if (server == shards_.owners()[shard] || Follows(server, shard)) continue;
    if (!Lives(server) || plan_.IsDraining(server)) continue;
    if (!best.has_value() || rank(server) < rank(*best)) best = server;
  }
  if (!drains) {
    // Each change parts copies that share a zone, or else brings two numbers nearer to each other, so that they end.
    const bool parts = best.has_value() && shares_zone && !shares(*best);
    const bool nearer = best.has_value() && levels && shares(*best) == shares_zone && held[*best] + 1 < held[before];
    if (!parts && !nearer) return std::nullopt;
  }
  return NewFollower{shard, before, best};
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
  const auto begin = [&](ShardId shard, uint32_t to, std::optional<uint32_t> before) {
    const uint32_t owner = shards_.owners()[shard];
    if (shards_.learners()[shard] > 0 || shards_.handovers()[shard] > 0 || !WhyNotLearnt(shard, to, before).empty())
      return;
    const auto pair = begun.find({owner, to});
    if (pair == begun.end() ? busy[owner] || busy[to] : pair->second == kShardsAtOnce) return;
    shards_.SetLearner(shard, to, before);
    busy[owner] = busy[to] = true;
    ++begun[{owner, to}];
  };
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const std::optional<uint32_t> target = plan_.TargetOf(shard);
    if (target.has_value() && !Follows(*target, shard)) begin(shard, *target, std::nullopt);
  }
  for (const NewFollower& change : NewFollowers()) {
    changes = true;
    if (change.server.has_value()) begin(change.shard, *change.server, change.before);
  }
  if (!changes) plan_.SetLevelsFollowers(false);
}

std::string ShardMoves::WhyNotLearnt(ShardId shard, uint32_t server, std::optional<uint32_t> before) const {
  const uint32_t owner = shards_.owners()[shard];
  if (shards_.IsUnserved(shard)) return absl::StrCat("ps ", owner, ", which does not serve it");
  for (const uint32_t each : {owner, server}) {
    if (!Lives(each)) return absl::StrCat("ps ", each, ", which is away");
    if (!KnowsLearners(each)) return absl::StrCat("ps ", each, ", to be started again with this version");
  }
  const std::vector<uint32_t> followers = shards_.copies().Of(shard);
  // One whose place is taken may lag, for ever where its disk is full; one that is to own the shard may not.
  const auto may_lag = [&](uint32_t follower) {
    return !Follows(server, shard) && follower == before.value_or(shards_.ReplacedByLearner(shard));
  };
  const bool lags = std::any_of(followers.begin(), followers.end(),
                                [&](uint32_t follower) { return !IsInSync(follower, shard) && !may_lag(follower); });
  if (!followers.empty() && !lags) return "";
  return options_.followers() > 1 ? "its followers to be in sync" : "its follower to be in sync";
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
    if (options_.replicated()) move->set_waiting_for(WhyNotLearnt(shard, *target, std::nullopt));
    if (shards_.handovers()[shard] > 0) move->set_waiting_for(absl::StrCat("ps ", owner, " to give it up"));
    if (shards_.IsUnserved(shard)) move->set_waiting_for(absl::StrCat("ps ", owner, ", which does not serve it"));
    if (!Lives(*target)) move->set_waiting_for(absl::StrCat("ps ", *target, ", which is away"));
  }
  if (shards_.mapped() && options_.replicated()) FillNewFollowers(status);
  for (v1::MemberStatus& server : *status->mutable_servers()) {
    server.set_draining(plan_.IsDraining(server.index()));
    server.set_out(IsKept(server.index()));
  }
  for (uint32_t server = 0; server < options_.servers; ++server) {
    if (IsKept(server)) status->set_places_kept(status->places_kept() + 1);
  }
  status->set_servers_expected(options_.servers - status->places_kept());
}

void ShardMoves::FillNewFollowers(v1::ClusterStatus* status) const {
  const auto add = [&](ShardId shard, uint32_t from) {
    v1::ShardMove* const move = status->add_moves();
    move->set_shard(shard);
    move->set_of_follower(true);
    move->set_from(from);
    return move;
  };
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const uint32_t learner = shards_.learners()[shard];
    if (learner == 0 || shards_.copies().Of(shard).empty() || plan_.TargetOf(shard).has_value()) continue;
    v1::ShardMove* const move = add(shard, shards_.ReplacedByLearner(shard));
    move->set_to(learner - 1);
    move->set_copying(true);
  }
  for (const NewFollower& change : NewFollowers()) {
    v1::ShardMove* const move = add(change.shard, change.before);
    move->set_to(change.server.value_or(move->from()));
    move->set_waiting_for(change.server.has_value() ? WhyNotLearnt(change.shard, *change.server, change.before)
                                                    : "another ps that can follow it");
  }
}

void ShardMoves::Restore(const v1::CoordinatorState& state) {
  if (state.servers() != options_.servers || state.owners().empty()) return;
  plan_.Restore(state);
  shards_.SetDraining(plan_.draining());
}

}  // namespace lodestone::server
