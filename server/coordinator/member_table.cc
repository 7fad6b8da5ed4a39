#include "server/coordinator/member_table.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/rpc/local_socket.h"
#include "server/coordinator/member_reports.h"
#include "server/coordinator/saved_state.h"
#include "server/monitoring/event_log.h"

namespace lodestone::server {
namespace {

constexpr size_t kEndedWorkersMax = 4096;  // Remembered.
constexpr size_t kEndedWorkersTold = 512;  // In one heartbeat's answer.
constexpr size_t kFormerTokensMax = 64;    // Of a place. A Join of a former holder is seconds late, not lives.
constexpr int64_t kRateWindowMs = 5000;
constexpr int64_t kRateStepMs = 250;  // Closer observations replace each other.

std::string WhereIs(const MemberPlace& place) {
  std::string where = place.peer;
  if (place.role == v1::ROLE_SERVER) where = absl::StrCat(place.address, where.empty() ? "" : ", ", where);
  return where.empty() ? "unnamed" : where;
}

// The tokens whose processes never hold `place` again once `request` has been granted.
std::vector<uint64_t> FormerTokens(const MemberPlace& place, const v1::JoinRequest& request) {
  std::vector<uint64_t> tokens = place.former_tokens;
  for (const uint64_t token : {place.token, static_cast<uint64_t>(request.predecessor())}) {
    if (token != 0 && token != request.token() && !absl::c_linear_search(tokens, token)) tokens.push_back(token);
  }
  if (tokens.size() > kFormerTokensMax) tokens.erase(tokens.begin(), tokens.end() - kFormerTokensMax);
  return tokens;
}

// Takes the newest of what grows into a window of the last seconds.
template <typename Value>
void Observe(int64_t now_ms, Value value, std::deque<std::pair<int64_t, Value>>* window) {
  if (window->size() >= 2 && now_ms - (*window)[window->size() - 2].first < kRateStepMs) window->pop_back();
  window->emplace_back(now_ms, std::move(value));
  while (window->size() > 2 && (*window)[1].first <= now_ms - kRateWindowMs) window->pop_front();
}

}  // namespace

MemberTable::MemberTable(const ClusterOptions* options, EventQueue* events)
    : options_(*options),
      events_(events),
      start_ms_(options_.time->NowMs()),
      servers_(options_.servers),
      workers_(options_.workers),
      next_incarnation_(std::max<Incarnation>(1, options_.first_incarnation)),
      ended_to_(options_.first_incarnation) {
  for (uint32_t i = 0; i < servers_.size(); ++i) {
    servers_[i].role = v1::ROLE_SERVER;
    servers_[i].index = i;
  }
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    workers_[i].role = v1::ROLE_WORKER;
    workers_[i].index = i;
  }
}

bool MemberTable::Alive(const MemberPlace& place) const {
  return place.incarnation != 0 && !place.left && !place.gone &&
         options_.time->NowMs() - place.last_contact_ms < LeaseMsOf(place);
}

uint32_t MemberTable::LeaseMsOf(const MemberPlace& place) const {
  return place.any_place ? std::min(options_.lease_ms, options_.worker_lease_ms) : options_.lease_ms;
}

double MemberTable::SecondsSinceContact(const MemberPlace& place) const {
  return static_cast<double>(options_.time->NowMs() - place.last_contact_ms) / 1000.0;
}

std::string MemberTable::LastHeard(const MemberPlace& place) const {
  if (place.gone && place.role == v1::ROLE_WORKER) return "its process has ended";
  if (place.gone) return absl::StrCat("nobody listens at ", place.address, " any more");
  return absl::StrFormat("%s %.1f s ago",
                         place.silent ? "not heard of since the coordinator was started again" : "last heard of",
                         SecondsSinceContact(place));
}

std::string MemberTable::Describe(const MemberPlace& place) const {
  return absl::StrCat(RoleName(place.role), " ", place.index, " (", WhereIs(place), ")");
}

const MemberPlace* MemberTable::Find(Incarnation incarnation) const {
  const auto found = by_incarnation_.find(incarnation);
  return found == by_incarnation_.end() ? nullptr : found->second;
}

MemberPlace* MemberTable::Find(Incarnation incarnation) {
  const auto found = by_incarnation_.find(incarnation);
  return found == by_incarnation_.end() ? nullptr : found->second;
}

std::string MemberTable::NameOf(Incarnation incarnation) const {
  const MemberPlace* const place = Find(incarnation);
  return place == nullptr ? NameOfIncarnation(incarnation) : Describe(*place);
}

absl::Status MemberTable::CheckAlive(Incarnation incarnation) const {
  const MemberPlace* const found = Find(incarnation);
  if (found == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "incarnation ", incarnation, " has not joined this coordinator, or another process has taken its place"));
  }
  const MemberPlace& place = *found;
  if (Alive(place)) return absl::OkStatus();
  if (place.left) return absl::FailedPreconditionError(absl::StrCat(Describe(place), " has left the cluster"));
  if (place.gone) {
    return absl::FailedPreconditionError(
        absl::StrCat("the lease of ", Describe(place), " was ended: its process was ", "taken for dead, as ",
                     place.role == v1::ROLE_WORKER ? place.watched_at : "its address", " refused connections"));
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("the lease of %s has ended: it was not heard of for %.1f s and its lease is %.1f s",
                      Describe(place), SecondsSinceContact(place), LeaseMsOf(place) / 1000.0));
}

absl::Status MemberTable::CheckJoin(const v1::JoinRequest& request) const {
  if (request.role() != v1::ROLE_SERVER && request.role() != v1::ROLE_WORKER) {
    return absl::InvalidArgumentError("who joins must say whether it is a server or a worker (role)");
  }
  if (std::max({request.peer().size(), request.address().size(), request.launch().size(), request.zone().size()}) >
      kReportTextBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("peer, address, launch (worker.launch) and zone (server.zone) must ",
                                                   "be at most ", kReportTextBytesMax, " bytes long"));
  }
  if (!request.local_socket().empty()) LODESTONE_RETURN_IF_ERROR(CheckLocalSocket(request.local_socket()));
  if (request.cluster() != options_.cluster) {
    return absl::InvalidArgumentError(absl::StrCat("this is the cluster `", options_.cluster, "`, and the ",
                                                   RoleName(request.role()), " that joins is of cluster `",
                                                   std::string(Utf8Prefix(request.cluster(), kReportTextBytesMax)),
                                                   "` (cluster.name)"));
  }
  if (request.role() == v1::ROLE_WORKER) return absl::OkStatus();
  if (request.shards() != options_.shards) {
    return absl::InvalidArgumentError(absl::StrCat("this cluster has ", options_.shards,
                                                   " shards, and the ps that joins has ", request.shards(),
                                                   " (cluster.shards)"));
  }
  if (request.has_servers() && request.servers() != options_.servers) {
    return absl::InvalidArgumentError(
        absl::StrCat("this cluster has ", options_.servers, " servers, and the ps that joins is configured for ",
                     request.servers(), " (cluster.servers): start all ps with the same number"));
  }
  const absl::StatusOr<HostPort> address = ParseHostPort(request.address());
  if (!address.ok()) return Annotate(address.status(), "the address of the ps that joins");
  if (address->port == 0 || IsWildcard(address->host)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the address of the ps that joins, ", request.address(), ", cannot be connected to"));
  }
  return absl::OkStatus();
}

MemberPlace* MemberTable::PlaceOfRetry(const v1::JoinRequest& request) {
  if (request.token() == 0) return nullptr;
  for (MemberPlace& place : PlacesOf(request.role())) {
    if (place.token != request.token() || !Alive(place)) continue;
    if (request.index_plus_one() == 0 || request.index_plus_one() == place.index + 1) return &place;
  }
  return nullptr;
}

absl::StatusOr<MemberTable::Choice> MemberTable::Choose(const v1::JoinRequest& request) {
  LODESTONE_RETURN_IF_ERROR(CheckJoin(request));
  if (MemberPlace* const retried = PlaceOfRetry(request); retried != nullptr) return Choice{retried, true};
  LODESTONE_ASSIGN_OR_RETURN(MemberPlace* const place, request.index_plus_one() > 0
                                                           ? PlaceAt(request.index_plus_one() - 1, request)
                                                           : FreePlace(request));
  return Choice{place, false};
}

bool MemberTable::Continues(const MemberPlace& place, const v1::JoinRequest& request) {
  if (!place.data.has_value() || !IsSameFolder(request.data(), *place.data)) return false;
  if (request.predecessor() != 0 && request.predecessor() == place.token)
    return !IsOlderCopy(request.data(), *place.data);
  if (!request.data().has_generation() || !place.data->has_generation()) return false;
  // That the life which joined last has begun may not have been heard of. With still more lives it is a folder that
  // another one was in the place of meanwhile.
  const uint64_t known = place.data->generation(), has = request.data().generation();
  return has == known || has == known + 1;
}

absl::StatusOr<MemberPlace*> MemberTable::PlaceAt(uint32_t index, const v1::JoinRequest& request) {
  const bool is_server = request.role() == v1::ROLE_SERVER;
  MemberPlaces& places = PlacesOf(request.role());
  if (!is_server) AddPlaces(index, request.any_place());
  if (index >= places.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is no ", ShortName(request.role(), index), " in this cluster: ",
        is_server ? "cluster.servers" : "cluster.workers", " is ", places.size(), ", and indices start at 0"));
  }
  MemberPlace& place = places[index];
  const bool displaced = request.former_incarnation() != 0 && request.former_incarnation() < place.incarnation &&
                         request.token() != place.token;
  if (displaced) {
    return absl::AlreadyExistsError(absl::StrCat("index ", index, " is no longer that of incarnation ",
                                                 request.former_incarnation(), ": ", Describe(place),
                                                 " has taken its place since"));
  }
  if (is_server && absl::c_linear_search(place.former_tokens, request.token())) {
    return absl::AlreadyExistsError(absl::StrCat("index ", index, " is that of ", Describe(place),
                                                 ", which has taken the place of the process that asks for it"));
  }
  const bool succeeds =
      (request.predecessor() != 0 && request.predecessor() == place.token) || Continues(place, request);
  const bool comes_back = is_server && (succeeds || place.address == request.address());
  if (!Alive(place) || comes_back) return &place;
  return absl::AlreadyExistsError(
      absl::StrCat("index ", index, " is held by ", Describe(place), ", ", LastHeard(place)));
}

absl::StatusOr<MemberPlace*> MemberTable::FreePlace(const v1::JoinRequest& request) {
  const v1::Role role = request.role();
  MemberPlaces& places = PlacesOf(role);
  MemberPlace* done = nullptr;
  for (MemberPlace& place : places) {
    if (Alive(place)) continue;
    if (!place.left) return &place;
    if (done == nullptr) done = &place;
  }
  if (done != nullptr) return done;
  const size_t held = places.size();
  if (role == v1::ROLE_WORKER) AddPlaces(static_cast<uint32_t>(held), request.any_place());
  if (places.size() > held) return &places.back();
  return absl::ResourceExhaustedError(
      absl::StrCat("all ", places.size(), " places for a ", RoleName(role), " are held by processes that live (",
                   role == v1::ROLE_SERVER ? "cluster.servers" : "cluster.workers", ")"));
}

void MemberTable::AddPlaces(uint32_t index, bool any_place) {
  if (!any_place || index >= limits::kWorkersMax) return;
  while (workers_.size() <= index) {
    MemberPlace& place = workers_.emplace_back();
    place.role = v1::ROLE_WORKER;
    place.index = static_cast<uint32_t>(workers_.size() - 1);
  }
}

bool MemberTable::EndLife(const MemberPlace& place) {
  if (place.incarnation == 0 || place.left || place.expiry_told) return false;
  events_->Note("died", place, Alive(place) ? "another process has taken its place" : LastHeard(place));
  NoteDied(place);
  return true;
}

Incarnation MemberTable::DrawIncarnation() {
  // Never behind the clock that the first came from, so that they stay comparable with it.
  const auto elapsed_us = static_cast<Incarnation>(options_.time->NowMs() - start_ms_) * 1000;
  next_incarnation_ = std::max(next_incarnation_, options_.first_incarnation + elapsed_us);
  ++changes_;
  return next_incarnation_++;
}

bool MemberTable::Occupy(MemberPlace* place, const v1::JoinRequest& request) {
  by_incarnation_.erase(place->incarnation);
  const bool same_process = request.token() != 0 && request.token() == place->token;  // It had lost its lease.
  MemberPlace next;
  next.role = place->role;
  next.index = place->index;
  next.incarnation = DrawIncarnation();
  next.token = request.token();
  next.address = request.role() == v1::ROLE_SERVER ? request.address() : "";
  next.local_socket = request.role() == v1::ROLE_SERVER ? request.local_socket() : "";
  next.zone = request.role() == v1::ROLE_SERVER ? request.zone() : "";
  next.peer = request.peer();
  if (request.has_data()) {
    next.data = request.data();
    const bool knew = same_process && place->data.has_value();
    next.data->set_held(knew && place->data->held());
    if (knew && place->data->generation() > next.data->generation()) {
      next.data->set_generation(place->data->generation());
    }
  }
  next.last_contact_ms = options_.time->NowMs();
  if (request.role() == v1::ROLE_SERVER) next.former_tokens = FormerTokens(*place, request);
  next.event_ms = same_process ? place->event_ms : 0;
  next.any_place = request.any_place();
  next.watched_at = request.role() == v1::ROLE_WORKER ? request.watched_at() : "";
  *place = std::move(next);
  by_incarnation_[place->incarnation] = place;
  ++changes_;
  events_->Note("joined", *place, absl::StrCat(same_process ? "again, " : "", WhereIs(*place)));
  return same_process;
}

void MemberTable::RenewAll() {
  for (MemberPlaces* places : {&servers_, &workers_}) {
    for (MemberPlace& place : *places) {
      if (place.incarnation == 0 || place.left || place.expiry_told) continue;
      place.last_contact_ms = options_.time->NowMs();
    }
  }
}

void MemberTable::NoteEnded(const MemberPlace& place) {
  if (place.role == v1::ROLE_WORKER) EndIncarnation(place.incarnation);
}

void MemberTable::NoteDied(const MemberPlace& place) {
  NoteEnded(place);
  if (place.role == v1::ROLE_WORKER) died_to_ = ended_to_;
}

std::vector<const MemberPlace*> MemberTable::ServersWithoutDeaths() const {
  std::vector<const MemberPlace*> servers;
  for (const MemberPlace& server : servers_) {
    if (Alive(server) && server.ended_heard < died_to_) servers.push_back(&server);
  }
  return servers;
}

void MemberTable::EndIncarnation(Incarnation incarnation) {
  ended_workers_.push_back(incarnation);
  ++ended_to_;
  if (ended_workers_.size() > kEndedWorkersMax) ended_workers_.pop_front();
}

void MemberTable::FillEnded(uint64_t from, v1::HeartbeatResponse* response) const {
  const uint64_t first = ended_to_ - ended_workers_.size();
  if (from < first || from > ended_to_) from = first;  // It is new, or was told by another coordinator.
  const size_t told = std::min<size_t>(ended_to_ - from, kEndedWorkersTold);
  const auto begin = ended_workers_.begin() + static_cast<ptrdiff_t>(from - first);
  response->mutable_workers_ended()->Add(begin, begin + static_cast<ptrdiff_t>(told));
  response->set_workers_ended_to(from + told);
}

void MemberTable::NoteGone(MemberPlace* place) { place->gone = true; }

bool MemberTable::HeardOf(MemberPlace* place) {
  place->last_contact_ms = options_.time->NowMs();
  return std::exchange(place->silent, false);
}

void MemberTable::Record(MemberPlace* place, const v1::HeartbeatRequest& request) {
  place->left = request.leaving();
  if (place->role == v1::ROLE_WORKER && request.has_progress()) RecordProgress(place, request.progress());
  if (place->role == v1::ROLE_SERVER) RecordServer(place, request);
  if (!place->left) return;
  ++changes_;
  NoteEnded(*place);
  events_->Note("left", *place, "shut down");
}

void MemberTable::RecordProgress(MemberPlace* place, const v1::WorkerProgress& progress) {
  // A heartbeat may come after a later question for clocks (AwaitClockRequest.own_clock): what others may already have
  // been told of this worker stays true.
  const Clock reached = std::max(place->progress.clock(), progress.clock());
  const bool trains = place->progress.phase() >= v1::PHASE_TRAINING && progress.phase() < v1::PHASE_TRAINING;
  place->progress = progress;
  place->progress.set_clock(reached);
  if (trains) place->progress.set_phase(v1::PHASE_TRAINING);
  BoundProgress(&place->progress);
  const int64_t now_ms = options_.time->NowMs();
  Observe(now_ms, progress.samples(), &place->samples);
  Observe(now_ms, place->progress.stages(), &place->stages);
}

void MemberTable::RecordServer(MemberPlace* place, const v1::HeartbeatRequest& request) {
  const uint64_t from = request.workers_ended_from();  // Another coordinator's number counts for nothing.
  place->ended_heard = from >= ended_to_ - ended_workers_.size() && from <= ended_to_ ? from : 0;
  place->copies.clear();
  for (const v1::ShardCopy& copy : request.copies()) {
    if (copy.shard() < options_.shards) place->copies[copy.shard()] = copy.version();
  }
  if (request.has_server()) {
    place->server = request.server();
    BoundProgress(&place->server);
    Observe(options_.time->NowMs(), place->server.stages(), &place->stages);
    if (request.server().table_bytes() > 0 && place->data.has_value() && !place->data->held()) {
      place->data->set_held(true);
      ++changes_;
    }
  }
  if (place->data.has_value() && place->data->has_generation() && request.generation() > place->data->generation()) {
    place->data->set_generation(request.generation());
    ++changes_;
  }
  size_t left = limits::kHeartbeatEventsMax;
  for (const v1::Event& told : request.events()) {
    if (left-- == 0) break;
    // Times of a process's events grow: these came with a heartbeat whose answer was lost.
    if (told.time_ms() <= place->event_ms) continue;
    place->event_ms = told.time_ms();
    v1::Event event = told;
    event.clear_id();
    event.DiscardUnknownFields();
    // A ps knows workers by their incarnations only.
    const MemberPlace* const found = Find(IncarnationNamed(told.who()));
    if (found != nullptr) event.set_who(ShortName(found->role, found->index));
    events_->Add(std::move(event));
  }
}

void MemberTable::Expire(absl::FunctionRef<void(const MemberPlace&)> on_expired) {
  for (MemberPlaces* places : {&servers_, &workers_}) {
    for (MemberPlace& place : *places) {
      if (place.incarnation == 0 || place.left || place.expiry_told || Alive(place)) continue;
      place.expiry_told = true;
      ++changes_;
      events_->Note("died", place, LastHeard(place));
      NoteDied(place);
      on_expired(place);
    }
  }
}

std::optional<int64_t> MemberTable::NextExpiryMs() const {
  std::optional<int64_t> next_ms;
  for (const MemberPlaces* places : {&servers_, &workers_}) {
    for (const MemberPlace& place : *places) {
      if (place.incarnation == 0 || place.left || place.expiry_told) continue;
      const int64_t ends_ms = place.last_contact_ms + LeaseMsOf(place);
      next_ms = std::min(next_ms.value_or(ends_ms), ends_ms);
    }
  }
  return next_ms;
}

void MemberTable::Save(v1::CoordinatorState* state) const {
  state->set_next_incarnation(next_incarnation_);
  for (const MemberPlaces* places : {&servers_, &workers_}) {
    for (const MemberPlace& place : *places) {
      if (place.incarnation == 0) continue;
      v1::CoordinatorState::Place* const saved = state->add_places();
      saved->set_role(place.role);
      saved->set_index(place.index);
      saved->set_incarnation(place.incarnation);
      saved->set_token(place.token);
      saved->mutable_former_tokens()->Add(place.former_tokens.begin(), place.former_tokens.end());
      saved->set_address(place.address);
      saved->set_local_socket(place.local_socket);
      saved->set_zone(place.zone);
      saved->set_peer(place.peer);
      if (place.data.has_value()) *saved->mutable_data() = *place.data;
      saved->set_left(place.left);
      saved->set_any_place(place.any_place);
      saved->set_watched_at(place.watched_at);
      saved->set_expired(!place.left && !Alive(place));
      if (place.role == v1::ROLE_SERVER) continue;
      *saved->mutable_progress() = place.progress;
      saved->mutable_progress()->clear_waiting_for();
      saved->mutable_progress()->clear_waits();
      saved->mutable_progress()->clear_stages();
    }
  }
}

void MemberTable::RestorePlace(const v1::CoordinatorState::Place& state, MemberPlace* place) {
  place->incarnation = state.incarnation();
  place->token = state.token();
  place->former_tokens.assign(state.former_tokens().begin(), state.former_tokens().end());
  place->address = state.address();
  place->local_socket = state.local_socket();
  place->zone = state.zone();
  place->peer = state.peer();
  if (state.has_data()) place->data = state.data();
  place->left = state.left();
  place->any_place = state.any_place();
  place->watched_at = state.watched_at();
  place->progress = state.progress();
  place->last_contact_ms = options_.time->NowMs();
  const bool ended_with_us = options_.ends_with_server_0 && state.role() == v1::ROLE_SERVER && state.index() == 0;
  if (!state.left() && (state.expired() || ended_with_us)) {
    place->last_contact_ms -= LeaseMsOf(*place);
    place->expiry_told = true;
    NoteDied(*place);  // Perhaps once more.
  }
  if (ended_with_us && !state.left() && !state.expired()) events_->Note("died", *place, "and the coordinator with it");
  place->silent = Alive(*place);
  by_incarnation_[place->incarnation] = place;
}

void MemberTable::Restore(const v1::CoordinatorState& state) {
  next_incarnation_ = std::max(next_incarnation_, state.next_incarnation());
  const bool run_is_over = RunIsOver(state);
  for (const v1::CoordinatorState::Place& place : state.places()) {
    if (place.role() == v1::ROLE_SERVER) {
      if (state.servers() == options_.servers) RestorePlace(place, &servers_[place.index()]);
    } else if (!run_is_over) {
      AddPlaces(place.index(), place.any_place());
      if (place.index() < workers_.size()) RestorePlace(place, &workers_[place.index()]);
    }
  }
}

}  // namespace lodestone::server
