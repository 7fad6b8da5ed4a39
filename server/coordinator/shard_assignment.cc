#include "server/coordinator/shard_assignment.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/numbers_text.h"
#include "common/base/planted_defect.h"
#include "common/base/status.h"
#include "common/wire/shard_map.h"
#include "server/coordinator/follower_choice.h"
#include "server/coordinator/shard_route.h"
#include "server/coordinator/zones.h"

namespace lodestone::server {
namespace {

constexpr size_t kShardRunsMax = 32;  // Of shards that moved, named in one event.
constexpr char kWithoutData[] = "it has joined without what they held";
constexpr char kWithOtherCopy[] =
    "it has joined with another copy of its folder than it served from last, which lacks what was acknowledged since";

}  // namespace

ShardAssignment::ShardAssignment(const ClusterOptions* options, const MemberTable* members, EventQueue* events)
    : options_(*options),
      members_(*members),
      events_(events),
      owners_(InitialOwners(options_.shards, options_.first_servers())),
      terms_(options_.shards),
      followers_(options_.shards, options_.followers()),
      undecided_(options_.shards),
      handovers_(options_.shards),
      given_up_(options_.shards),
      learners_(options_.shards),
      lost_(options_.shards),
      equal_(options_.shards) {
  const uint32_t servers = options_.first_servers();
  if (options_.followers() > 0) *followers_.mutable_firsts() = InitialFollowers(options_.shards, servers);
  if (options_.followers() > 1) *followers_.mutable_seconds() = InitialFollowers(options_.shards, servers, 1);
}

void ShardAssignment::ServerJoined(const MemberPlace& server, const Start& start) {
  const bool was_mapped = mapped_;
  mapped_ = mapped_ || std::all_of(members_.servers().begin(), members_.servers().begin() + options_.first_servers(),
                                   [&](const MemberPlace& p) { return members_.Alive(p); });
  if (!mapped_) return;
  // Shards that are dealt again are not what they were in an earlier life of the cluster.
  if (!was_mapped && epoch_ > 0) terms_.assign(options_.shards, epoch_ + 1);
  // What a ps had applied but not acknowledged when it ended may be gone: its versions will be other updates'.
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (was_mapped && start.new_process && owners_[shard] == server.index) terms_[shard] = epoch_ + 1;
  }
  if (!was_mapped && (epoch_ == 0 || owners_unknown_)) {
    dealt_anew_ = true;
    FindAllLost();
  }
  if (was_mapped && start.new_process) FindLost(server, start);
  if (was_mapped) JudgeEqual(server, start);
  if (start.new_process) FollowEqual(server);
  if (!was_mapped && epoch_ == 0) PartZones();
  NewEpoch();
  AssignFollowers();
}

void ShardAssignment::PartZones() {
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const uint32_t first = followers_.firsts()[shard], second = followers_.seconds()[shard];
    if (second > 0 && SharesZone(second - 1, shard)) followers_.ClearSecond(shard);
    if (first > 0 && SharesZone(first - 1, shard)) followers_.SetFirst(shard, 0);
  }
}

bool ShardAssignment::SharesZone(uint32_t server, ShardId shard, std::optional<uint32_t> except) const {
  const MemberPlaces& servers = members_.servers();
  const auto shares = [&](uint32_t other) {
    return other != server && other != except && ShareZone(servers[server], servers[other]);
  };
  const uint32_t first = followers_.firsts()[shard], second = followers_.seconds()[shard];
  return shares(owners_[shard]) || (first > 0 && shares(first - 1)) || (second > 0 && shares(second - 1));
}

void ShardAssignment::FollowEqual(const MemberPlace& server) {
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (!equal_.IsWith(server.index, shard) || owners_[shard] == server.index) continue;
    if (followers_.Follows(server.index, shard)) continue;
    // One that is in sync is as good.
    if (!followers_.in_sync()[shard]) followers_.SetFirst(shard, server.index + 1);
  }
  learners_.RemoveFollowers(followers_);
}

void ShardAssignment::FindLost(const MemberPlace& server, const Start& start) {
  if (!server.data.has_value()) return;  // It does not say: it is of an older version.
  const std::optional<v1::ServerData>& former = start.former;
  const bool other_copy = former.has_value() && !start.continues && IsOtherCopy(*server.data, *former);
  const bool another = former.has_value() && !IsSameFolder(*server.data, *former);
  std::vector<ShardId> lost;
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (owners_[shard] != server.index) continue;
    if (lost_.IsLost(shard)) {
      // The folder that has it is back, and nothing was served since.
      if (lost_.IsIncomplete(shard, server.data) && !lost_.IsIncomplete(shard, former)) lost_.SetFound(shard);
    } else if (other_copy || (another && (former->folder() != 0 || former->held()))) {
      lost_.Lose(shard, *former);
      lost.push_back(shard);
    }
  }
  NoteLost(server, lost, other_copy ? kWithOtherCopy : kWithoutData);
}

void ShardAssignment::FindAllLost() {
  const MemberPlaces& servers = members_.servers();
  const auto served = [](const MemberPlace& place) {
    return place.data.has_value() && place.data->served() && place.data->folder() != 0;
  };
  if (std::none_of(servers.begin(), servers.end(), served)) return;
  // Servers that come later, or that came later in a life before, may have owned any.
  const bool may_have_grown = options_.first_servers() < options_.servers;
  const bool shared = may_have_grown || std::any_of(servers.begin(), servers.end(), [](const MemberPlace& place) {
                        return place.data.has_value() && place.data->shared();
                      });
  std::vector<std::vector<ShardId>> lost(servers.size());
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const MemberPlace& owner = servers[owners_[shard]];
    // Where there were followers or moves, it may have been another's when the coordinator last knew.
    if (!options_.replicated() && !shared && (served(owner) || !owner.data.has_value())) continue;
    lost_.Lose(shard, v1::ServerData());
    lost[owner.index].push_back(shard);
  }
  for (const MemberPlace& place : servers) NoteLost(place, lost[place.index], kWithoutData);
}

void ShardAssignment::NoteLost(const MemberPlace& server, const std::vector<ShardId>& shards, const std::string& why) {
  if (shards.empty()) return;
  const std::string text = absl::StrCat(shards.size(), " of its shards: ", why);
  events_->Note("lost", server, text);
  failovers_.push_back(absl::StrCat(members_.Describe(server), " lost ", text, "; they are not served"));
}

bool ShardAssignment::IsUnserved(ShardId shard) const {
  return mapped_ && (lost_.IsLost(shard) || !members_.Alive(members_.servers()[owners_[shard]]));
}

uint32_t ShardAssignment::unserved() const {
  uint32_t count = 0;
  for (ShardId shard = 0; shard < options_.shards; ++shard) count += IsUnserved(shard);
  return count;
}

uint32_t ShardAssignment::ToSync() const {
  if (!mapped_ || !options_.replicated()) return 0;
  uint32_t count = 0;
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (IsUnserved(shard)) continue;
    bool waits = false;
    for (const uint32_t follower : followers_.Of(shard)) {
      waits |= !followers_.IsInSync(follower, shard) && members_.Alive(members_.servers()[follower]);
    }
    count += waits;
  }
  return count;
}

absl::StatusOr<uint32_t> ShardAssignment::PromoteCopies(const MemberPlace& server) {
  if (!members_.Alive(server)) {
    return absl::FailedPreconditionError(
        absl::StrCat("ps ", server.index, " is away: start it, and promote it when it has joined"));
  }
  std::map<uint32_t, std::vector<ShardId>> moved;  // By the former owner.
  for (const auto& [shard, version] : server.copies) {
    if (owners_[shard] == server.index || !IsUnserved(shard)) continue;
    moved[owners_[shard]].push_back(shard);
    followers_.PutFirst(server.index, shard);
    Promote(shard);
  }
  if (moved.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("ps ", server.index, " holds no copy of a shard that is not served"));
  }
  NewEpoch();
  uint32_t count = 0;
  for (const auto& [former, shards] : moved) {
    count += shards.size();
    failovers_.push_back(absl::StrCat("an operator promotes ", members_.Describe(server),
                                      "; to it of the shards of ps ", former, ": ", shards.size()));
    NoteMoved(former, server.index, shards);
  }
  AssignFollowers();
  return count;
}

absl::StatusOr<uint32_t> ShardAssignment::AcceptLoss(const MemberPlace& server) {
  uint32_t count = 0;
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (owners_[shard] != server.index || !lost_.IsLost(shard)) continue;
    lost_.SetFound(shard);
    equal_.Forget(shard);
    terms_[shard] = epoch_ + 1;
    ++count;
  }
  if (count == 0) return absl::FailedPreconditionError(absl::StrCat("ps ", server.index, " has lost no shard"));
  NewEpoch();
  const std::string text = absl::StrCat("is accepted by an operator; ", count, " shards are served from what it has");
  events_->Note("lost", server, text);
  failovers_.push_back(absl::StrCat("the loss of ", members_.Describe(server), " ", text));
  return count;
}

void ShardAssignment::NewEpoch() {
  ++epoch_;
  ++changes_;
  owners_unknown_ = owners_unknown_ && (!mapped_ || lost_.any());  // Until all is decided.
}

ShardAssignment::Fate ShardAssignment::Decide(ShardId shard) {
  PreferHeard(shard);
  const uint32_t first = followers_.firsts()[shard];
  if (!followers_.in_sync()[shard] && !(Planted(Defect::kLaggingFollowerPromoted) && first > 0)) return Fate::kStays;
  const MemberPlace& follower = members_.servers()[first - 1];
  if (!members_.Alive(follower)) {
    const bool in_sync = followers_.in_sync()[shard];
    EndInSync(shard);
    return in_sync ? Decide(shard) : Fate::kStays;
  }
  if (!follower.silent) {
    // Where it is open who is to own the shard, another life of the owner may hold less than the one that ended.
    const bool equal = followers_.in_sync()[shard] && !lost_.IsLost(shard) && !undecided_[shard];
    const uint32_t former = owners_[shard];
    Promote(shard);
    if (equal && equal_.HolderOf(shard) == 0) equal_.Note(shard, former);
    return Fate::kMoves;
  }
  if (!undecided_[shard]) ++changes_;
  undecided_[shard] = true;
  return Fate::kWaits;
}

void ShardAssignment::PreferHeard(ShardId shard) {
  if (!followers_.second_in_sync()[shard]) return;
  const auto heard = [this](uint32_t server) {  // Index plus one.
    const MemberPlace& place = members_.servers()[server - 1];
    return members_.Alive(place) && !place.silent;
  };
  if (heard(followers_.firsts()[shard]) || !heard(followers_.seconds()[shard])) return;
  EndHandover(shard);
  followers_.Swap(shard);
  ++changes_;
}

void ShardAssignment::EndInSync(ShardId shard) {
  const uint32_t server = followers_.firsts()[shard] - 1;
  followers_.SetInSync(server, shard, false);
  ++changes_;
  EndHandover(shard);
  if (followers_.in_sync()[shard]) return;  // The other one is the first now.
  undecided_[shard] = false;
  equal_.Note(shard, server);
}

void ShardAssignment::Promote(ShardId shard) {
  const uint32_t former = owners_[shard];
  // The other one in sync has all that was acknowledged until the new owner, which may be dead already, is told.
  const uint32_t other = followers_.second_in_sync()[shard] ? followers_.seconds()[shard] : 0;
  owners_[shard] = followers_.firsts()[shard] - 1;
  followers_.Promote(shard, former);
  undecided_[shard] = false;
  EndHandover(shard);
  learners_.Set(shard, std::nullopt);
  lost_.SetFound(shard);
  equal_.Forget(shard);
  if (other > 0) equal_.Note(shard, other - 1);
  terms_[shard] = epoch_ + 1;
}

bool ShardAssignment::EndHandover(ShardId shard) {
  given_up_[shard] = false;
  return std::exchange(handovers_[shard], 0) > 0;
}

void ShardAssignment::SetMoveFollower(ShardId shard, std::optional<uint32_t> server) {
  followers_.SetFirst(shard, server.has_value() ? *server + 1 : 0);
  undecided_[shard] = false;
  EndHandover(shard);
  NewEpoch();
}

void ShardAssignment::SetLearner(ShardId shard, std::optional<uint32_t> server, std::optional<uint32_t> replaced) {
  learners_.Set(shard, server, replaced);
  NewEpoch();
}

uint32_t ShardAssignment::ReplacedByLearner(ShardId shard) const {
  const std::optional<uint32_t> meant = learners_.ReplacedBy(shard);
  if (meant.has_value() && followers_.Follows(*meant, shard)) return *meant;
  const std::vector<uint32_t> followers = followers_.Of(shard);
  const auto find = [&](const auto& is_meant) -> std::optional<uint32_t> {
    const auto found = std::find_if(followers.begin(), followers.end(), is_meant);
    return found == followers.end() ? std::nullopt : std::optional<uint32_t>(*found);
  };
  if (const auto one = find([this](uint32_t server) { return IsDraining(server); })) return *one;
  if (const auto one = find([&](uint32_t server) { return !followers_.IsInSync(server, shard); })) return *one;
  if (const auto one = find([&](uint32_t server) { return SharesZone(server, shard); })) return *one;
  return followers.front();
}

void ShardAssignment::PutFirst(uint32_t server, ShardId shard) {
  if (followers_.firsts()[shard] == server + 1) return;
  followers_.PutFirst(server, shard);
  EndHandover(shard);
  NewEpoch();
}

void ShardAssignment::AskToKeep(ShardId shard) {
  if (EndHandover(shard)) NewEpoch();
}

void ShardAssignment::AskToGiveUp(const std::vector<ShardId>& shards) {
  for (const ShardId shard : shards) handovers_[shard] = epoch_ + 1;
  NewEpoch();
}

std::vector<ShardId> ShardAssignment::HandOver() {
  std::vector<ShardId> all;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<ShardId>> moved;  // By the former owner and the new one.
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (!given_up_[shard]) continue;
    const uint32_t former = owners_[shard];
    Promote(shard);
    // It follows from where it is, so that it can take the shard back if the new owner ends before it is told.
    if (equal_.HolderOf(shard) == 0 && followers_.Follows(former, shard)) equal_.Note(shard, former);
    moved[{former, owners_[shard]}].push_back(shard);
    all.push_back(shard);
  }
  if (all.empty()) return all;
  NewEpoch();
  for (const auto& [pair, handed] : moved) {
    failovers_.push_back(absl::StrCat("as planned, ps ", pair.second, " takes over shards of ps ", pair.first, ": ",
                                      NumbersText(handed, kShardRunsMax)));
    NoteMoved(pair.first, pair.second, handed);
  }
  return all;
}

bool ShardAssignment::HasHandovers() const {
  return std::any_of(handovers_.begin(), handovers_.end(), [](uint64_t handover) { return handover > 0; });
}

bool ShardAssignment::IsComplete() const {
  if (!mapped_) return false;
  if (!options_.replicated()) return unserved() == 0;
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (!followers_.IsComplete(shard)) return false;
  }
  return true;
}

void ShardAssignment::EndMovesOf(const MemberPlace& server) {
  bool asked = false;
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const uint32_t follower = followers_.firsts()[shard];
    if (owners_[shard] != server.index && follower != server.index + 1) continue;
    changes_ += followers_.in_sync()[shard];
    followers_.SetFirst(shard, follower);
    asked |= EndHandover(shard);
  }
  if (asked) NewEpoch();  // So that an owner that has given a shard up takes it back.
}

void ShardAssignment::TakeOut(const MemberPlace& server) {
  if (!mapped_) return;
  if (!options_.replicated()) return EndMovesOf(server);
  bool changed = learners_.Remove(server.index);
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (!followers_.IsInSync(server.index, shard)) continue;
    if (followers_.seconds()[shard] == server.index + 1) {
      followers_.SetInSync(server.index, shard, false);
      ++changes_;
      continue;
    }
    changed |= handovers_[shard] > 0;  // So that an owner that has given it up takes it back.
    EndInSync(shard);
  }
  std::map<uint32_t, std::vector<ShardId>> moved;  // By the follower.
  std::map<uint32_t, uint32_t> waiting;            // How many, by the follower.
  uint32_t stay = 0;
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (owners_[shard] != server.index) continue;
    Fate fate = Decide(shard);
    if (fate == Fate::kStays && PromoteEqual(shard, nullptr)) fate = Fate::kMoves;
    if (fate == Fate::kMoves) moved[owners_[shard]].push_back(shard);
    if (fate == Fate::kWaits) ++waiting[followers_.firsts()[shard] - 1];
    if (fate == Fate::kStays) ++stay;
  }
  if (!moved.empty() || changed) NewEpoch();
  std::vector<std::string> fates;
  for (const auto& [to, shards] : moved) {
    fates.push_back(absl::StrCat(shards.size(), " to ps ", to));
    NoteMoved(server.index, to, shards);
  }
  for (const auto& [to, count] : waiting) fates.push_back(absl::StrCat(count, " open until ps ", to, " is heard of"));
  if (stay > 0) fates.push_back(absl::StrCat(stay, " without an owner, waiting for it"));
  if (fates.empty()) return;
  failovers_.push_back(absl::StrCat(members_.Describe(server), " is out; its shards: ", absl::StrJoin(fates, ", ")));
}

void ShardAssignment::PromoteUndecided(const MemberPlace& server) {
  if (!mapped_) return;
  std::map<uint32_t, std::vector<ShardId>> moved;  // By the former owner.
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (!undecided_[shard] || !followers_.IsInSync(server.index, shard)) continue;
    followers_.PutFirst(server.index, shard);
    moved[owners_[shard]].push_back(shard);
    Promote(shard);
  }
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const uint32_t owner = owners_[shard];
    if (!equal_.IsWith(server.index, shard)) continue;
    if (!lost_.IsLost(shard) && !members_.HasEnded(members_.servers()[owner])) continue;
    if (PromoteEqual(shard, nullptr)) moved[owner].push_back(shard);
  }
  if (moved.empty()) return;
  NewEpoch();
  for (const auto& [former, shards] : moved) {
    failovers_.push_back(
        absl::StrCat(members_.Describe(server), " lives; to it of the shards of ps ", former, ": ", shards.size()));
    NoteMoved(former, server.index, shards);
  }
  AssignFollowers();
}

void ShardAssignment::AssignFollowers() {
  if (!mapped_ || !options_.replicated()) return;
  if (!ChooseFollowers(members_, owners_, draining_, &followers_)) return;
  learners_.RemoveFollowers(followers_);
  NewEpoch();
}

bool ShardAssignment::Report(const MemberPlace& owner, const v1::ReportSyncRequest::Report& report) {
  const ShardId shard = report.shard();
  if (!mapped_ || owners_[shard] != owner.index) return false;
  // It may have been sent before the shard moved away and back.
  if (report.has_term() && report.term() != terms_[shard]) return false;
  if (undecided_[shard]) return false;  // The shard is no longer its own, or else Route will say that it is.
  const auto place_of = [this](uint32_t server) { return server > 0 ? &members_.servers()[server - 1] : nullptr; };
  const MemberPlace* const follower = place_of(followers_.firsts()[shard]);
  const MemberPlace* const second = place_of(followers_.seconds()[shard]);
  if (second != nullptr && report.follower() != 0 && second->incarnation == report.follower()) {
    return ReportSecond(shard, report);
  }
  if (learners_.Of(shard).has_value() && report.follower() != 0) {
    const MemberPlace& learner = members_.servers()[*learners_.Of(shard)];
    if (learner.incarnation == report.follower()) return ReportLearner(shard, learner, report);
  }
  const bool is_other = follower == nullptr || follower->incarnation != report.follower();
  if (report.in_sync() && (is_other || !members_.Alive(*follower))) return false;
  if (report.gives_up() > 0) {
    // Asked again, after it had taken the shard back, it must give it up again.
    if (!report.in_sync() || report.gives_up() != handovers_[shard] || follower->silent) return false;
    given_up_[shard] = true;
    return true;
  }
  equal_.Forget(shard);
  // What is not the follower is not in sync, and nothing is said of the one that is.
  if (!report.in_sync() && report.follower() != 0 && is_other) return true;
  if (follower == nullptr) return true;
  if (followers_.in_sync()[shard] != report.in_sync()) ++changes_;
  followers_.SetInSync(follower->index, shard, report.in_sync());
  if (!report.in_sync() && EndHandover(shard)) NewEpoch();
  return true;
}

bool ShardAssignment::ReportSecond(ShardId shard, const v1::ReportSyncRequest::Report& report) {
  const MemberPlace& second = members_.servers()[followers_.seconds()[shard] - 1];
  if (report.gives_up() > 0) return false;  // It is not the one that is to own the shard.
  if (report.in_sync() && !members_.Alive(second)) return false;
  equal_.Forget(shard);
  if (followers_.second_in_sync()[shard] != report.in_sync()) ++changes_;
  followers_.SetInSync(second.index, shard, report.in_sync());
  return true;
}

bool ShardAssignment::ReportLearner(ShardId shard, const MemberPlace& learner,
                                    const v1::ReportSyncRequest::Report& report) {
  if (!report.in_sync()) return true;  // It does not count yet.
  if (report.gives_up() > 0 || handovers_[shard] > 0 || !members_.Alive(learner)) return false;
  equal_.Forget(shard);
  followers_.Replace(ReplacedByLearner(shard), learner.index, shard);
  followers_.SetInSync(learner.index, shard, true);
  learners_.Set(shard, std::nullopt);
  NewEpoch();
  return true;
}

void ShardAssignment::NoteMoved(uint32_t from, uint32_t to, const std::vector<ShardId>& moved) {
  const absl::string_view shards = moved.size() == 1 ? "shard " : "shards ";
  events_->Note("moved", members_.servers()[from],
                absl::StrCat(shards, NumbersText(moved, kShardRunsMax), " to ps ", to));
}

absl::StatusOr<v1::RouteResponse> ShardAssignment::Route() const { return RouteOf(options_, members_, *this); }

void ShardAssignment::NoteTold(const MemberPlace* server) {
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (server != nullptr && owners_[shard] != server->index) continue;
    if (!lost_.IsLost(shard) && !members_.HasEnded(members_.servers()[owners_[shard]])) equal_.Forget(shard);
  }
}

bool ShardAssignment::PromoteEqual(ShardId shard, const MemberPlace* begins) {
  if (equal_.HolderOf(shard) == 0) return false;
  const MemberPlace& holder = members_.servers()[equal_.HolderOf(shard) - 1];
  if (!members_.Alive(holder) || holder.silent) return false;
  // One that runs already has brought back what it follows.
  if (&holder != begins && (!followers_.Follows(holder.index, shard) || equal_.IsAsleep(shard))) return false;
  const bool equal = !lost_.IsLost(shard);
  const uint32_t former = owners_[shard];
  followers_.PutFirst(holder.index, shard);
  Promote(shard);
  // So has the owner that has ended all that was acknowledged, until the new one is told.
  if (equal) equal_.Note(shard, former);
  return true;
}

void ShardAssignment::JudgeEqual(const MemberPlace& server, const Start& start) {
  const bool proves = start.new_process && start.continues && server.data->whole();
  const bool lacks = start.new_process && server.data.has_value() && server.data->has_whole() && !server.data->whole();
  std::map<std::pair<uint32_t, uint32_t>, std::vector<ShardId>> moved;  // By the former owner and the new one.
  uint32_t cut_short = 0;
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    const MemberPlace& owner = members_.servers()[owners_[shard]];
    const bool incomplete = lost_.IsIncomplete(shard, owner.data);
    if (equal_.IsWith(server.index, shard)) equal_.SetAsleep(shard, !start.new_process && !incomplete);
    if (equal_.IsWith(server.index, shard) && !proves && start.new_process) {
      equal_.Forget(shard);
      if (incomplete) {  // Then neither is known to be whole: the owner goes on.
        lost_.SetFound(shard);
        terms_[shard] = epoch_ + 1;
      }
    }
    const bool open = equal_.HolderOf(shard) != 0 || undecided_[shard];
    if (owner.index == server.index && lacks && open && !lost_.IsLost(shard)) {
      lost_.Lose(shard, *server.data);
      ++cut_short;
    }
    if (!lost_.IsLost(shard) && !members_.HasEnded(owner)) continue;
    if (PromoteEqual(shard, start.new_process ? &server : nullptr))
      moved[{owner.index, owners_[shard]}].push_back(shard);
  }
  for (const auto& [pair, shards] : moved) {
    failovers_.push_back(absl::StrCat("ps ", pair.second,
                                      " holds all that was acknowledged; to it of the shards of ps ", pair.first, ": ",
                                      shards.size()));
    NoteMoved(pair.first, pair.second, shards);
  }
  if (cut_short == 0) return;
  const std::string text =
      absl::StrCat("may lack the end of ", cut_short, " of its shards, as its machine went down; another ps has it");
  events_->Note("lost", server, text);
  failovers_.push_back(
      absl::StrCat(members_.Describe(server), " ", text, ", and they are not served before it is back"));
}

bool ShardAssignment::HasTerms() const {
  return options_.replicated() || HasFollowers() ||
         std::any_of(terms_.begin(), terms_.end(), [](uint64_t term) { return term > 0; });
}

void ShardAssignment::Save(v1::CoordinatorState* state) const {
  state->set_epoch(epoch_);
  state->set_owners_unknown(owners_unknown_);
  state->set_dealt_anew(dealt_anew_);
  if (!mapped_) return;
  state->mutable_owners()->Add(owners_.begin(), owners_.end());
  if (HasTerms()) state->mutable_terms()->Add(terms_.begin(), terms_.end());
  if (options_.replicated() || HasFollowers()) {
    followers_.Save(state);
    state->mutable_undecided()->Add(undecided_.begin(), undecided_.end());
  }
  learners_.Save(state);
  if (HasHandovers()) state->mutable_handovers()->Add(handovers_.begin(), handovers_.end());
  equal_.Save(
      [this](ShardId shard) { return lost_.IsLost(shard) || members_.HasEnded(members_.servers()[owners_[shard]]); },
      state);
  lost_.Save(state);
}

void ShardAssignment::Restore(const v1::CoordinatorState& state) {
  epoch_ = state.epoch();
  if (state.servers() != options_.servers) return;
  owners_unknown_ = state.owners_unknown();
  if (state.owners().empty()) return;
  mapped_ = true;
  dealt_anew_ = state.dealt_anew();
  owners_.assign(state.owners().begin(), state.owners().end());
  if (!state.terms().empty()) terms_.assign(state.terms().begin(), state.terms().end());
  lost_.Restore(state);
  RestoreFollowers(state);
  // It has followers now, or none any more.
  if ((options_.replicated() || HasFollowers()) == state.followers().empty()) NewEpoch();
}

void ShardAssignment::RestoreFollowers(const v1::CoordinatorState& state) {
  if (!options_.replicated()) {
    // Those of moves; others are from when there were replicas.
    for (ShardId shard = 0; shard < options_.shards && !state.followers().empty() && !state.moves().empty(); ++shard) {
      if (state.moves(static_cast<int>(shard)) != state.followers(static_cast<int>(shard))) continue;
      const uint32_t follower = state.followers(static_cast<int>(shard));
      const bool in_sync = follower > 0 && state.in_sync(static_cast<int>(shard));
      followers_.SetFirst(shard, follower);
      if (in_sync) followers_.SetInSync(follower - 1, shard, true);
      if (in_sync && !state.handovers().empty()) handovers_[shard] = state.handovers(static_cast<int>(shard));
    }
    return;
  }
  if (state.followers().empty()) {
    followers_.DropImpossible(owners_);  // AssignFollowers finds others.
    return;
  }
  if (followers_.Restore(state)) NewEpoch();
  followers_.DropImpossible(owners_);
  if (!state.undecided().empty()) undecided_.assign(state.undecided().begin(), state.undecided().end());
  if (!state.handovers().empty()) handovers_.assign(state.handovers().begin(), state.handovers().end());
  learners_.Restore(state);
  learners_.RemoveFollowers(followers_);
  equal_.Restore(state);
}

}  // namespace lodestone::server
