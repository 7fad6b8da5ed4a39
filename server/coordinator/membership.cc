#include "server/coordinator/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/host_port.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/rpc/local_socket.h"
#include "common/wire/shard_map.h"
#include "server/monitoring/event_log.h"

namespace lodestone::server {
namespace {

constexpr size_t kTextBytesMax = 1024;  // Of any text that a process tells about itself.
constexpr size_t kNamesMax = 16;        // Named in one message.

std::string RoleName(v1::Role role) { return role == v1::ROLE_SERVER ? "ps" : "worker"; }

std::string WhereIs(const MemberPlace& place) {
  std::string where = place.peer;
  if (place.role == v1::ROLE_SERVER) where = absl::StrCat(place.address, where.empty() ? "" : ", ", where);
  return where.empty() ? "unnamed" : where;
}

}  // namespace

Membership::Membership(Options options)
    : options_(std::move(options)),
      servers_(options_.servers),
      workers_(options_.workers),
      start_ms_(options_.time->NowMs()),
      next_incarnation_(std::max<Incarnation>(1, options_.first_incarnation)),
      owners_(InitialOwners(options_.shards, options_.servers)),
      terms_(options_.shards) {
  if (options_.replicas > 1 && options_.servers > 1) {
    followers_ = InitialFollowers(options_.shards, options_.servers);
    in_sync_.assign(options_.shards, false);
    undecided_.assign(options_.shards, false);
  }
  for (uint32_t i = 0; i < servers_.size(); ++i) {
    servers_[i].role = v1::ROLE_SERVER;
    servers_[i].index = i;
  }
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    workers_[i].role = v1::ROLE_WORKER;
    workers_[i].index = i;
  }
}

bool Membership::Alive(const Place& place) const {
  return place.incarnation != 0 && !place.left && options_.time->NowMs() - place.last_contact_ms < options_.lease_ms;
}

bool Membership::TakesSteps(const Place& place) const {
  return Alive(place) && (place.silent || place.progress.phase() < v1::PHASE_WAITING);
}

double Membership::SecondsSinceContact(const Place& place) const {
  return static_cast<double>(options_.time->NowMs() - place.last_contact_ms) / 1000.0;
}

std::string Membership::LastHeard(const Place& place) const {
  return absl::StrFormat("%s %.1f s ago",
                         place.silent ? "not heard of since the coordinator was started again" : "last heard of",
                         SecondsSinceContact(place));
}

std::string Membership::Describe(const Place& place) const {
  return absl::StrCat(RoleName(place.role), " ", place.index, " (", WhereIs(place), ")");
}

absl::Status Membership::CheckJoin(const v1::JoinRequest& request) const {
  if (request.role() != v1::ROLE_SERVER && request.role() != v1::ROLE_WORKER) {
    return absl::InvalidArgumentError("who joins must say whether it is a server or a worker (role)");
  }
  if (request.peer().size() > kTextBytesMax || request.address().size() > kTextBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("peer and address must be at most ", kTextBytesMax, " bytes long"));
  }
  if (!request.local_socket().empty()) LODESTONE_RETURN_IF_ERROR(CheckLocalSocket(request.local_socket()));
  if (request.cluster() != options_.cluster) {
    return absl::InvalidArgumentError(absl::StrCat(
        "this is the cluster `", options_.cluster, "`, and the ", RoleName(request.role()),
        " that joins is of cluster `", std::string(Utf8Prefix(request.cluster(), kTextBytesMax)), "` (cluster.name)"));
  }
  if (request.role() == v1::ROLE_WORKER) return absl::OkStatus();
  if (request.shards() != options_.shards) {
    return absl::InvalidArgumentError(absl::StrCat("this cluster has ", options_.shards,
                                                   " shards, and the ps that joins has ", request.shards(),
                                                   " (cluster.shards)"));
  }
  const absl::StatusOr<HostPort> address = ParseHostPort(request.address());
  if (!address.ok()) return Annotate(address.status(), "the address of the ps that joins");
  if (address->port == 0 || IsWildcard(address->host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the address of the ps that joins, ", request.address(), ", cannot be connected to"));
  }
  return absl::OkStatus();
}

Membership::Place* Membership::PlaceOfRetry(const v1::JoinRequest& request) {
  if (request.token() == 0) return nullptr;
  for (Place& place : request.role() == v1::ROLE_SERVER ? servers_ : workers_) {
    if (place.token != request.token() || !Alive(place)) continue;
    if (request.index_plus_one() == 0 || request.index_plus_one() == place.index + 1) return &place;
  }
  return nullptr;
}

absl::StatusOr<Membership::Place*> Membership::ChoosePlace(const v1::JoinRequest& request) {
  const bool is_server = request.role() == v1::ROLE_SERVER;
  std::vector<Place>& places = is_server ? servers_ : workers_;
  if (request.index_plus_one() > 0) {
    const uint32_t index = request.index_plus_one() - 1;
    if (index >= places.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "there is no ", RoleName(request.role()), " ", index, " in this cluster: ",
          is_server ? "cluster.servers" : "cluster.workers", " is ", places.size(), ", and indices start at 0"));
    }
    Place& place = places[index];
    const bool succeeds = request.predecessor() != 0 && request.predecessor() == place.token;
    const bool comes_back = is_server && (succeeds || place.address == request.address());
    if (!Alive(place) || comes_back) return &place;
    return absl::AlreadyExistsError(
        absl::StrCat("index ", index, " is held by ", Describe(place), ", ", LastHeard(place)));
  }
  Place* done = nullptr;
  for (Place& place : places) {
    if (Alive(place)) continue;
    if (!place.left) return &place;
    if (done == nullptr) done = &place;
  }
  if (done != nullptr) return done;
  return absl::ResourceExhaustedError(absl::StrCat("all ", places.size(), " places for a ", RoleName(request.role()),
                                                   " are held by processes that live (",
                                                   is_server ? "cluster.servers" : "cluster.workers", ")"));
}

absl::StatusOr<v1::JoinResponse> Membership::Join(const v1::JoinRequest& request) {
  LODESTONE_RETURN_IF_ERROR(CheckJoin(request));
  if (Place* const retried = PlaceOfRetry(request); retried != nullptr) {
    HeardOf(retried);
    return AnswerTo(*retried);
  }
  LODESTONE_ASSIGN_OR_RETURN(Place* const place, ChoosePlace(request));
  const bool ends_here = place->incarnation != 0 && !place->left && !place->expiry_told;
  if (ends_here) Note("died", *place, Alive(*place) ? "another process has taken its place" : LastHeard(*place));
  if (place->role == v1::ROLE_SERVER && ends_here) TakeOut(*place);
  by_incarnation_.erase(place->incarnation);
  const bool same_process = request.token() != 0 && request.token() == place->token;  // It had lost its lease.
  Place next;
  next.role = place->role;
  next.index = place->index;
  // Never behind the clock that the first came from, so that they stay comparable with it.
  const auto elapsed_us = static_cast<Incarnation>(options_.time->NowMs() - start_ms_) * 1000;
  next_incarnation_ = std::max(next_incarnation_, options_.first_incarnation + elapsed_us);
  next.incarnation = next_incarnation_++;
  next.token = request.token();
  next.address = request.role() == v1::ROLE_SERVER ? request.address() : "";
  next.local_socket = request.role() == v1::ROLE_SERVER ? request.local_socket() : "";
  next.peer = request.peer();
  next.last_contact_ms = options_.time->NowMs();
  next.event_ms = same_process ? place->event_ms : 0;
  *place = std::move(next);
  by_incarnation_[place->incarnation] = place;
  ++changes_;
  Note("joined", *place, absl::StrCat(same_process ? "again, " : "", WhereIs(*place)));
  if (request.role() == v1::ROLE_SERVER) ServerJoined(*place, !same_process);
  return AnswerTo(*place);
}

v1::JoinResponse Membership::AnswerTo(const Place& place) const {
  v1::JoinResponse response;
  response.set_index(place.index);
  response.set_incarnation(place.incarnation);
  response.set_lease_ms(options_.lease_ms);
  return response;
}

void Membership::ServerJoined(const Place& server, bool starts) {
  const bool was_mapped = mapped_;
  mapped_ = mapped_ || std::all_of(servers_.begin(), servers_.end(), [&](const Place& p) { return Alive(p); });
  if (!mapped_) return;
  // Shards that are dealt anew are not what they were in an earlier life of the cluster.
  if (!was_mapped && epoch_ > 0) terms_.assign(options_.shards, epoch_ + 1);
  // What a ps had applied but not acknowledged when it ended may be gone: its versions will be other updates'.
  for (ShardId shard = 0; shard < options_.shards; ++shard) {
    if (was_mapped && starts && owners_[shard] == server.index) terms_[shard] = epoch_ + 1;
  }
  NewEpoch();
  AssignFollowers();
}

void Membership::HeardOf(Place* place) {
  place->last_contact_ms = options_.time->NowMs();
  if (!std::exchange(place->silent, false)) return;
  if (place->role == v1::ROLE_SERVER) PromoteUndecided(*place);
}

absl::Status Membership::CheckAlive(Incarnation incarnation) const {
  const auto found = by_incarnation_.find(incarnation);
  if (found == by_incarnation_.end()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "incarnation ", incarnation, " has not joined this coordinator, or another process has taken its place"));
  }
  const Place& place = *found->second;
  if (Alive(place)) return absl::OkStatus();
  if (place.left) return absl::FailedPreconditionError(absl::StrCat(Describe(place), " has left the cluster"));
  return absl::FailedPreconditionError(
      absl::StrFormat("the lease of %s has ended: it was not heard of for %.1f s and its lease is %.1f s",
                      Describe(place), SecondsSinceContact(place), options_.lease_ms / 1000.0));
}

absl::StatusOr<v1::HeartbeatResponse> Membership::Heartbeat(const v1::HeartbeatRequest& request) {
  LODESTONE_RETURN_IF_ERROR(CheckAlive(request.incarnation()));
  Place& place = *by_incarnation_.find(request.incarnation())->second;
  HeardOf(&place);
  place.left = request.leaving();
  if (place.role == v1::ROLE_WORKER && request.has_progress()) RecordProgress(&place, request.progress());
  if (place.role == v1::ROLE_SERVER) RecordServer(&place, request);
  if (place.left) {
    ++changes_;
    Note("left", place, "in good order");
  }
  if (place.left && place.role == v1::ROLE_SERVER) {
    TakeOut(place);
    AssignFollowers();
  }
  v1::HeartbeatResponse response;
  response.set_route_epoch(epoch());
  response.set_lease_ms(options_.lease_ms);
  return response;
}

absl::StatusOr<v1::RouteResponse> Membership::Route() const {
  if (!mapped_) {
    std::vector<uint32_t> missing;
    for (const Place& place : servers_) {
      if (!Alive(place)) missing.push_back(place.index);
    }
    std::string names = absl::StrJoin(missing.begin(), missing.begin() + std::min(missing.size(), kNamesMax), ", ");
    if (missing.size() > kNamesMax) absl::StrAppend(&names, ", ...");
    return absl::UnavailableError(absl::StrCat("waiting for ", missing.size(), " of ", servers_.size(),
                                               " servers: index ", names,
                                               missing.size() == 1 ? " has not joined" : " have not joined"));
  }
  LODESTONE_RETURN_IF_ERROR(CheckDecided());
  v1::RouteResponse response;
  response.set_epoch(epoch_);
  for (const Place& place : servers_) {
    v1::RouteResponse::Server* const server = response.add_servers();
    server->set_address(place.address);
    server->set_incarnation(place.incarnation);
    server->set_away(!Alive(place));
    server->set_local_socket(place.local_socket);
  }
  response.mutable_owners()->Add(owners_.begin(), owners_.end());
  response.mutable_followers()->Add(followers_.begin(), followers_.end());
  response.mutable_in_sync()->Add(in_sync_.begin(), in_sync_.end());
  if (TellsTerms()) response.mutable_terms()->Add(terms_.begin(), terms_.end());
  return response;
}

LowestClocks Membership::Lowest() const {
  LowestClocks clocks;
  for (const Place& place : workers_) {
    if (!TakesSteps(place)) continue;
    const Clock clock = ClockOf(place);
    if (clock < clocks.lowest) {
      clocks.lowest_of_others = clocks.lowest;
      clocks.lowest = clock;
      clocks.holder = place.incarnation;
    } else {
      clocks.lowest_of_others = std::min(clocks.lowest_of_others, clock);
    }
  }
  // Nobody is beyond the start while a worker has yet to come: its part of the data is its own.
  if (!NeverJoined().empty()) clocks = {.holder = 0, .lowest = 0, .lowest_of_others = 0};
  return clocks;
}

std::vector<std::string> Membership::Behind(Incarnation asker, Clock clock) const {
  std::vector<std::string> lines;
  size_t more = 0;
  for (const Place& place : workers_) {
    if (place.incarnation == asker || !TakesSteps(place) || ClockOf(place) >= clock) continue;
    if (lines.size() < kNamesMax) {
      const std::string is = place.silent ? " was " : absl::StrCat(" is at clock ", place.progress.clock(), ", ");
      lines.push_back(absl::StrCat(Describe(place), is, LastHeard(place)));
    } else {
      ++more;
    }
  }
  for (const uint32_t index : clock > 0 ? NeverJoined() : std::vector<uint32_t>()) {
    if (lines.size() < kNamesMax) {
      lines.push_back(absl::StrCat("worker ", index, " has not joined"));
    } else {
      ++more;
    }
  }
  if (more > 0) lines.push_back(absl::StrCat("and ", more, " more"));
  return lines;
}

std::vector<uint32_t> Membership::NeverJoined() const {
  std::vector<uint32_t> indices;
  for (uint32_t index = 0; index < options_.workers; ++index) {
    if (index >= workers_.size() || workers_[index].incarnation == 0) indices.push_back(index);
  }
  return indices;
}

std::vector<std::string> Membership::TakeExpired() {
  std::vector<std::string> lines;
  for (std::vector<Place>* places : {&servers_, &workers_}) {
    for (Place& place : *places) {
      if (place.incarnation == 0 || place.left || place.expiry_told || Alive(place)) continue;
      place.expiry_told = true;
      ++changes_;
      lines.push_back(absl::StrFormat("%s was not heard of for %.1f s", Describe(place), SecondsSinceContact(place)));
      Note("died", place, LastHeard(place));
      if (place.role == v1::ROLE_SERVER) TakeOut(place);
    }
  }
  if (!lines.empty()) AssignFollowers();
  return lines;
}

std::optional<int64_t> Membership::NextExpiryMs() const {
  std::optional<int64_t> next_ms;
  for (const std::vector<Place>* places : {&servers_, &workers_}) {
    for (const Place& place : *places) {
      if (place.incarnation == 0 || place.left || place.expiry_told) continue;
      const int64_t ends_ms = place.last_contact_ms + options_.lease_ms;
      next_ms = std::min(next_ms.value_or(ends_ms), ends_ms);
    }
  }
  return next_ms;
}

std::string Membership::NameOf(Incarnation incarnation) const {
  const auto found = by_incarnation_.find(incarnation);
  return found == by_incarnation_.end() ? NameOfIncarnation(incarnation) : Describe(*found->second);
}

}  // namespace lodestone::server
