// The part of Membership that outlives the coordinator.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/shard_map.h"
#include "server/coordinator/membership.h"

namespace lodestone::server {
namespace {

constexpr uint32_t kFormat = 1;

// Every worker of the state's run has come and left in good order.
bool RunIsOver(const v1::CoordinatorState& state) {
  const auto left = std::count_if(state.places().begin(), state.places().end(),
                                  [](const auto& place) { return place.role() == v1::ROLE_WORKER && place.left(); });
  return left == state.workers();
}

}  // namespace

v1::CoordinatorState Membership::SaveState() const {
  v1::CoordinatorState state;
  state.set_format(kFormat);
  state.set_cluster(options_.cluster);
  state.set_shards(options_.shards);
  state.set_servers(options_.servers);
  state.set_workers(options_.workers);
  state.set_epoch(epoch_);
  state.set_next_incarnation(next_incarnation_);
  if (mapped_) {
    state.mutable_owners()->Add(owners_.begin(), owners_.end());
    SaveReplicas(&state);
  }
  for (const std::vector<Place>* places : {&servers_, &workers_}) {
    for (const Place& place : *places) {
      if (place.incarnation == 0) continue;
      v1::CoordinatorState::Place* const saved = state.add_places();
      saved->set_role(place.role);
      saved->set_index(place.index);
      saved->set_incarnation(place.incarnation);
      saved->set_token(place.token);
      saved->set_address(place.address);
      saved->set_local_socket(place.local_socket);
      saved->set_peer(place.peer);
      saved->set_left(place.left);
      saved->set_expired(!place.left && !Alive(place));
      if (place.role == v1::ROLE_SERVER) continue;
      *saved->mutable_progress() = place.progress;
      saved->mutable_progress()->clear_waiting_for();
    }
  }
  return state;
}

absl::Status Membership::CheckState(const v1::CoordinatorState& state) const {
  if (state.format() != kFormat) {
    return absl::FailedPreconditionError(absl::StrCat("the coordinator's state has format ", state.format(),
                                                      ", and this program knows format ", kFormat));
  }
  if (state.cluster() != options_.cluster || state.shards() != options_.shards) {
    return absl::FailedPreconditionError(absl::StrCat("the coordinator's state is of the cluster `", state.cluster(),
                                                      "` with ", state.shards(), " shards, and this is the cluster `",
                                                      options_.cluster, "` with ", options_.shards,
                                                      " (cluster.name, cluster.shards)"));
  }
  const auto broken = [](const auto&... what) {
    return absl::DataLossError(absl::StrCat("the coordinator's state contradicts itself: ", what...));
  };
  if (!state.owners().empty() && state.owners_size() != static_cast<int64_t>(state.shards())) {
    return broken(state.owners_size(), " owners of ", state.shards(), " shards");
  }
  for (const uint32_t owner : state.owners()) {
    if (owner >= state.servers()) return broken("a shard of server ", owner, " where there are ", state.servers());
  }
  LODESTONE_RETURN_IF_ERROR(CheckReplicas(state));
  absl::flat_hash_set<Incarnation> incarnations;
  absl::flat_hash_set<std::pair<int, uint32_t>> places;
  for (const v1::CoordinatorState::Place& place : state.places()) {
    const bool is_server = place.role() == v1::ROLE_SERVER;
    if (!is_server && place.role() != v1::ROLE_WORKER) return broken("a place of no role");
    if (place.index() >= (is_server ? state.servers() : state.workers()) ||
        !places.emplace(place.role(), place.index()).second) {
      return broken("place ", place.index());
    }
    if (place.incarnation() == 0 || place.incarnation() >= state.next_incarnation() ||
        !incarnations.insert(place.incarnation()).second) {
      return broken("incarnation ", place.incarnation(), " at place ", place.index());
    }
  }
  return absl::OkStatus();
}

void Membership::RestorePlace(const v1::CoordinatorState::Place& state, Place* place) {
  place->incarnation = state.incarnation();
  place->token = state.token();
  place->address = state.address();
  place->local_socket = state.local_socket();
  place->peer = state.peer();
  place->left = state.left();
  place->progress = state.progress();
  place->last_contact_ms = options_.time->NowMs();
  const bool ended_with_us = options_.ends_with_server_0 && state.role() == v1::ROLE_SERVER && state.index() == 0;
  if (!state.left() && (state.expired() || ended_with_us)) {
    place->last_contact_ms -= options_.lease_ms;
    place->expiry_told = true;
  }
  if (ended_with_us && !state.left() && !state.expired()) Note("died", *place, "and the coordinator with it");
  place->silent = Alive(*place);
  by_incarnation_[place->incarnation] = place;
}

absl::Status Membership::Restore(const v1::CoordinatorState& state) {
  LODESTONE_RETURN_IF_ERROR(CheckState(state));
  next_incarnation_ = std::max(next_incarnation_, state.next_incarnation());
  epoch_ = state.epoch();
  const bool same_servers = state.servers() == options_.servers;
  if (same_servers && !state.owners().empty()) {
    mapped_ = true;
    owners_.assign(state.owners().begin(), state.owners().end());
    RestoreReplicas(state);
  }
  const bool run_is_over = RunIsOver(state);
  for (const v1::CoordinatorState::Place& place : state.places()) {
    if (place.role() == v1::ROLE_SERVER) {
      if (same_servers) RestorePlace(place, &servers_[place.index()]);
    } else if (!run_is_over && place.index() < options_.workers) {
      RestorePlace(place, &workers_[place.index()]);
    }
  }
  // Whatever ended before, or with the last life of the coordinator, and was not acted on.
  for (const Place& place : servers_) {
    if (place.incarnation != 0 && !Alive(place)) TakeOut(place);
  }
  return absl::OkStatus();
}

}  // namespace lodestone::server
