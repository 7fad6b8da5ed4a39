// The part of Membership that knows followers, and who takes over.
//
// Why nothing acknowledged is lost: as long as a follower counts as in sync, its owner acknowledges only what it has,
// so that it can become the owner at any time. The owner stops waiting for it only after it was told, and that is
// saved, that it does not count any more. A follower that is not known to live may be dead, and its next life may lack
// what the owner has: while that is open, so is who owns the shard.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/wire/shard_map.h"
#include "server/coordinator/membership.h"

namespace lodestone::server {

void Membership::RouteChanged() {
  ++changes_;
  ++route_changes_;
}

void Membership::NewEpoch() {
  ++epoch_;
  RouteChanged();
}

Membership::Fate Membership::Decide(ShardId shard) {
  if (!in_sync_[shard]) return Fate::kStays;
  const Place& follower = servers_[followers_[shard] - 1];
  if (!Alive(follower)) {
    in_sync_[shard] = false;
    undecided_[shard] = false;
    RouteChanged();
    return Fate::kStays;
  }
  if (!follower.silent) {
    Promote(shard);
    return Fate::kMoves;
  }
  if (!undecided_[shard]) RouteChanged();
  undecided_[shard] = true;
  return Fate::kWaits;
}

void Membership::Promote(ShardId shard) {
  const uint32_t former = owners_[shard];
  owners_[shard] = followers_[shard] - 1;
  followers_[shard] = former + 1;
  in_sync_[shard] = false;
  undecided_[shard] = false;
  terms_[shard] = epoch_ + 1;
}

void Membership::TakeOut(const Place& server) {
  if (!mapped_ || !HasFollowers()) return;
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (followers_[shard] != server.index + 1 || !in_sync_[shard]) continue;
    in_sync_[shard] = false;
    undecided_[shard] = false;
    RouteChanged();
  }
  std::map<uint32_t, std::vector<ShardId>> moved;  // By the follower.
  std::map<uint32_t, uint32_t> waiting;            // How many, by the follower.
  uint32_t stay = 0;
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (owners_[shard] != server.index) continue;
    const uint32_t follower = followers_[shard] - 1;
    const Fate fate = Decide(shard);
    if (fate == Fate::kMoves) moved[follower].push_back(shard);
    if (fate == Fate::kWaits) ++waiting[follower];
    if (fate == Fate::kStays) ++stay;
  }
  if (!moved.empty()) NewEpoch();
  std::vector<std::string> fates;
  for (const auto& [to, shards] : moved) {
    fates.push_back(absl::StrCat(shards.size(), " to ps ", to));
    NoteMoved(server.index, to, shards);
  }
  for (const auto& [to, count] : waiting) fates.push_back(absl::StrCat(count, " open until ps ", to, " is heard of"));
  if (stay > 0) fates.push_back(absl::StrCat(stay, " to nobody, waiting for it"));
  if (fates.empty()) return;
  failovers_.push_back(absl::StrCat(Describe(server), " is out; its shards: ", absl::StrJoin(fates, ", ")));
}

void Membership::PromoteUndecided(const Place& server) {
  if (!mapped_ || !HasFollowers()) return;
  std::map<uint32_t, std::vector<ShardId>> moved;  // By the former owner.
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (!undecided_[shard] || followers_[shard] != server.index + 1) continue;
    moved[owners_[shard]].push_back(shard);
    Promote(shard);
  }
  if (moved.empty()) return;
  NewEpoch();
  for (const auto& [former, shards] : moved) {
    failovers_.push_back(
        absl::StrCat(Describe(server), " lives; to it of the shards of ps ", former, ": ", shards.size()));
    NoteMoved(former, server.index, shards);
  }
  AssignFollowers();
}

void Membership::AssignFollowers() {
  if (!mapped_ || !HasFollowers()) return;
  std::vector<bool> alive(servers_.size());
  for (const Place& place : servers_) alive[place.index] = Alive(place);
  std::vector<uint32_t> held(servers_.size());  // Shards, by who owns or follows them.
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    ++held[owners_[shard]];
    if (followers_[shard] > 0) ++held[followers_[shard] - 1];
  }
  bool changed = false;
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const uint32_t former = followers_[shard];
    // One that is dead and in sync has not been taken out yet.
    if (former > 0 && (alive[former - 1] || in_sync_[shard])) continue;
    uint32_t best = 0;  // Index plus one.
    for (uint32_t server = 0; server < held.size(); ++server) {
      if (!alive[server] || server == owners_[shard]) continue;
      if (best == 0 || held[server] < held[best - 1]) best = server + 1;
    }
    if (best == 0) continue;
    if (former > 0) --held[former - 1];
    ++held[best - 1];
    followers_[shard] = best;
    changed = true;
  }
  if (changed) NewEpoch();
}

absl::StatusOr<v1::ReportSyncResponse> Membership::ReportSync(const v1::ReportSyncRequest& request) {
  LODESTONE_RETURN_IF_ERROR(CheckAlive(request.incarnation()));
  Place& owner = *by_incarnation_.find(request.incarnation())->second;
  if (owner.role != v1::ROLE_SERVER) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(owner), " owns no shards, and tells who follows them"));
  }
  for (const auto& report : request.reports()) {
    if (report.shard() < options_.shards) continue;
    return absl::InvalidArgumentError(absl::StrCat(Describe(owner), " tells who follows shard ", report.shard(),
                                                   ", and there are ", options_.shards, " (cluster.shards)"));
  }
  if (request.sequence() < owner.report_sequence) {
    return absl::AbortedError(absl::StrCat("report ", request.sequence(), " of ", Describe(owner),
                                           " comes after its report ", owner.report_sequence));
  }
  owner.report_sequence = request.sequence();
  HeardOf(&owner);
  v1::ReportSyncResponse response;
  for (const auto& report : request.reports()) response.add_accepted(Report(owner, report));
  response.set_route_epoch(epoch());
  return response;
}

bool Membership::Report(const Place& owner, const v1::ReportSyncRequest::Report& report) {
  const ShardId shard = report.shard();
  if (!mapped_ || owners_[shard] != owner.index) return false;
  if (!HasFollowers()) return !report.in_sync();
  if (undecided_[shard]) return false;  // The shard is no longer its own, or else it will be told that it is.
  const Place* const follower = followers_[shard] > 0 ? &servers_[followers_[shard] - 1] : nullptr;
  if (report.in_sync()) {
    if (follower == nullptr || follower->incarnation != report.follower() || !Alive(*follower)) return false;
  } else if (report.follower() != 0 && (follower == nullptr || follower->incarnation != report.follower())) {
    return true;  // Whoever is not the follower is not in sync, and nothing is said of the one that is.
  }
  if (in_sync_[shard] != report.in_sync()) RouteChanged();
  in_sync_[shard] = report.in_sync();
  return true;
}

absl::Status Membership::CheckDecided() const {
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> open;  // How many shards, by follower and owner.
  for (ShardId shard = 0; shard < undecided_.size(); ++shard) {
    if (undecided_[shard]) ++open[{followers_[shard] - 1, owners_[shard]}];
  }
  if (open.empty()) return absl::OkStatus();
  std::vector<std::string> lines;
  for (const auto& [pair, count] : open) {
    const Place& follower = servers_[pair.first];
    lines.push_back(absl::StrCat(Describe(follower), ", ", LastHeard(follower), ", may own ", count,
                                 " of the shards of ps ", pair.second));
  }
  return absl::UnavailableError(absl::StrCat("waiting for followers that had all: ", absl::StrJoin(lines, "; ")));
}

absl::Status Membership::CheckReplicas(const v1::CoordinatorState& state) const {
  const auto broken = [](const auto&... what) {
    return absl::DataLossError(absl::StrCat("the coordinator's state contradicts itself: ", what...));
  };
  const auto shards = static_cast<int64_t>(state.owners_size());
  for (const auto& [what, size] : {std::pair{"terms", state.terms_size()},
                                   {"followers", state.followers_size()},
                                   {"followers in sync or not", state.in_sync_size()},
                                   {"shards decided or not", state.undecided_size()}}) {
    if (size != 0 && size != shards) return broken(size, " ", what, " where ", shards, " shards have owners");
  }
  for (const uint64_t term : state.terms()) {
    if (term > state.epoch()) return broken("term ", term, " in epoch ", state.epoch());
  }
  for (int shard = 0; shard < shards; ++shard) {
    const uint32_t follower = state.followers().empty() ? 0 : state.followers(shard);
    const bool in_sync = !state.in_sync().empty() && state.in_sync(shard);
    const bool undecided = !state.undecided().empty() && state.undecided(shard);
    if (follower > state.servers() || follower == state.owners(shard) + 1) {
      return broken("shard ", shard, " of server ", state.owners(shard), " is followed by server ", follower - 1,
                    " where there are ", state.servers());
    }
    if ((in_sync && follower == 0) || (undecided && !in_sync)) return broken("nobody is in sync with shard ", shard);
  }
  return absl::OkStatus();
}

bool Membership::TellsTerms() const {
  return HasFollowers() || std::any_of(terms_.begin(), terms_.end(), [](uint64_t term) { return term > 0; });
}

void Membership::SaveReplicas(v1::CoordinatorState* state) const {
  if (TellsTerms()) state->mutable_terms()->Add(terms_.begin(), terms_.end());
  state->mutable_followers()->Add(followers_.begin(), followers_.end());
  state->mutable_in_sync()->Add(in_sync_.begin(), in_sync_.end());
  state->mutable_undecided()->Add(undecided_.begin(), undecided_.end());
}

void Membership::RestoreReplicas(const v1::CoordinatorState& state) {
  if (!state.terms().empty()) terms_.assign(state.terms().begin(), state.terms().end());
  if (HasFollowers() == state.followers().empty()) NewEpoch();  // It has followers now, or none any more.
  if (!HasFollowers()) return;
  if (state.followers().empty()) {
    for (ShardId shard = 0; shard < options_.shards; ++shard) {
      // The owner is another than at first: AssignFollowers finds somebody.
      if (followers_[shard] == owners_[shard] + 1) followers_[shard] = 0;
    }
    return;
  }
  followers_.assign(state.followers().begin(), state.followers().end());
  if (!state.in_sync().empty()) in_sync_.assign(state.in_sync().begin(), state.in_sync().end());
  if (!state.undecided().empty()) undecided_.assign(state.undecided().begin(), state.undecided().end());
}

}  // namespace lodestone::server
