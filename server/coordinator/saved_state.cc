#include "server/coordinator/saved_state.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/types.h"

namespace lodestone::server {
namespace {

template <typename... What>
absl::Status Broken(const What&... what) {
  return absl::DataLossError(absl::StrCat("the coordinator's state contradicts itself: ", what...));
}

absl::Status CheckReplicas(const v1::CoordinatorState& state) {
  const auto shards = static_cast<int64_t>(state.owners_size());
  for (const auto& [what, size] : {std::pair{"terms", state.terms_size()},
                                   {"followers", state.followers_size()},
                                   {"followers in sync or not", state.in_sync_size()},
                                   {"second followers", state.second_followers_size()},
                                   {"second followers in sync or not", state.second_in_sync_size()},
                                   {"shards decided or not", state.undecided_size()},
                                   {"shards lost or not", state.lost_size()},
                                   {"folders of lost shards", state.lost_folders_size()},
                                   {"generations of these folders", state.lost_generations_size()},
                                   {"equal copies", state.equal_copies_size()},
                                   {"other equal copies", state.other_equal_copies_size()},
                                   {"equal copies asleep or not", state.equal_asleep_size()},
                                   {"moves", state.moves_size()},
                                   {"handovers", state.handovers_size()},
                                   {"learners", state.learners_size()}}) {
    if (size != 0 && size != shards) return Broken(size, " ", what, " where ", shards, " shards have owners");
  }
  for (const uint64_t term : state.terms()) {
    if (term > state.epoch()) return Broken("term ", term, " in epoch ", state.epoch());
  }
  for (int shard = 0; shard < shards; ++shard) {
    const uint32_t follower = state.followers().empty() ? 0 : state.followers(shard);
    const bool in_sync = !state.in_sync().empty() && state.in_sync(shard);
    const bool undecided = !state.undecided().empty() && state.undecided(shard);
    for (const auto* equal_copies : {&state.equal_copies(), &state.other_equal_copies()}) {
      const uint32_t equal = equal_copies->empty() ? 0 : (*equal_copies)[shard];
      if (equal <= state.servers() && equal != state.owners(shard) + 1) continue;
      return Broken("shard ", shard, " of server ", state.owners(shard), " has an equal copy at server ", equal - 1);
    }
    if (follower > state.servers() || follower == state.owners(shard) + 1) {
      return Broken("shard ", shard, " of server ", state.owners(shard), " is followed by server ", follower - 1,
                    " where there are ", state.servers());
    }
    const uint32_t second = state.second_followers().empty() ? 0 : state.second_followers(shard);
    const bool second_in_sync = !state.second_in_sync().empty() && state.second_in_sync(shard);
    if (second > state.servers() || second == state.owners(shard) + 1 || (second > 0 && second == follower)) {
      return Broken("shard ", shard, " of server ", state.owners(shard), " is followed by server ", second - 1,
                    " too where there are ", state.servers());
    }
    if (second_in_sync && (second == 0 || !in_sync)) {
      return Broken("the second follower of shard ", shard, " is in sync, and the first one is not");
    }
    const uint32_t learner = state.learners().empty() ? 0 : state.learners(shard);
    if (learner > state.servers() || learner == state.owners(shard) + 1 ||
        (learner > 0 && (learner == follower || learner == second))) {
      return Broken("shard ", shard, " of server ", state.owners(shard), " is learnt by server ", learner - 1,
                    " where there are ", state.servers());
    }
    if ((in_sync && follower == 0) || (undecided && !in_sync))
      return Broken("no follower is in sync with shard ", shard);
    const uint64_t handover = state.handovers().empty() ? 0 : state.handovers(shard);
    if (handover > state.epoch() || (handover > 0 && !in_sync)) {
      return Broken("handover ", handover, " of shard ", shard, " in epoch ", state.epoch());
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMoves(const v1::CoordinatorState& state) {
  for (const uint32_t target : state.moves()) {
    if (target > state.servers()) return Broken("a move to server ", target - 1, " where there are ", state.servers());
  }
  for (const uint32_t server : state.draining()) {
    if (server >= state.servers()) return Broken("server ", server, " drains where there are ", state.servers());
  }
  return absl::OkStatus();
}

absl::Status CheckPlaces(const v1::CoordinatorState& state) {
  absl::flat_hash_set<Incarnation> incarnations;
  absl::flat_hash_set<std::pair<int, uint32_t>> places;
  for (const v1::CoordinatorState::Place& place : state.places()) {
    const bool is_server = place.role() == v1::ROLE_SERVER;
    if (!is_server && place.role() != v1::ROLE_WORKER) return Broken("a place of no role");
    if (place.index() >= (is_server ? state.servers() : state.workers()) ||
        !places.emplace(place.role(), place.index()).second) {
      return Broken("place ", place.index());
    }
    if (place.incarnation() == 0 || place.incarnation() >= state.next_incarnation() ||
        !incarnations.insert(place.incarnation()).second) {
      return Broken("incarnation ", place.incarnation(), " at place ", place.index());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckState(const v1::CoordinatorState& state, const ClusterOptions& options) {
  if (state.format() != kStateFormat) {
    return absl::FailedPreconditionError(absl::StrCat("the coordinator's state has format ", state.format(),
                                                      ", and this program knows format ", kStateFormat));
  }
  if (state.cluster() != options.cluster || state.shards() != options.shards) {
    return absl::FailedPreconditionError(absl::StrCat("the coordinator's state is of the cluster `", state.cluster(),
                                                      "` with ", state.shards(), " shards, and this is the cluster `",
                                                      options.cluster, "` with ", options.shards,
                                                      " (cluster.name, cluster.shards)"));
  }
  if (!state.owners().empty() && state.owners_size() != static_cast<int64_t>(state.shards())) {
    return Broken(state.owners_size(), " owners of ", state.shards(), " shards");
  }
  for (const uint32_t owner : state.owners()) {
    if (owner >= state.servers()) return Broken("a shard of server ", owner, " where there are ", state.servers());
  }
  LODESTONE_RETURN_IF_ERROR(CheckReplicas(state));
  LODESTONE_RETURN_IF_ERROR(CheckMoves(state));
  return CheckPlaces(state);
}

v1::CoordinatorState KeptOf(const v1::CoordinatorState& state) {
  v1::CoordinatorState kept;
  kept.set_format(state.format());
  kept.set_cluster(state.cluster());
  kept.set_shards(state.shards());
  kept.set_servers(state.servers());
  kept.set_workers(state.workers());
  kept.set_epoch(state.epoch());
  kept.set_next_incarnation(state.next_incarnation());
  if (state.has_validations()) *kept.mutable_validations() = state.validations();
  if (state.has_ranges()) *kept.mutable_ranges() = state.ranges();
  if (state.has_order()) *kept.mutable_order() = state.order();
  kept.set_owners_unknown(true);
  return kept;
}

bool RunIsOver(const v1::CoordinatorState& state) {
  const auto left = std::count_if(state.places().begin(), state.places().end(),
                                  [](const auto& place) { return place.role() == v1::ROLE_WORKER && place.left(); });
  return left == state.workers();
}

}  // namespace lodestone::server
