// Who belongs to the cluster: the processes that have joined, their leases, the workers' progress, and the shard map.
//
// A process that is not heard of for the length of its lease is dead: for good, under its incarnation; its index is
// free for the next that joins. Time is only looked at when a method is called; nothing happens by itself.
//
// With replicas, each shard has a follower on another server than its owner. An owner tells which of them are in sync,
// and whenever a life of a server ends (its lease ends, it leaves, another life of it joins), the shards that it owned
// go to those of their followers that are in sync; nobody else ever gets one. The others stay with it, until it comes
// back.
//
// Its state can be written down and taken up again by another life of the coordinator, which then goes on as if the
// first had only been silent for a while.
//
// Not thread-safe: CoordinatorService guards it. Memory is bounded by the configured numbers of servers, workers and
// shards: each index remembers its latest holder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/time_source.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/coordinator_state.pb.h"
#include "server/coordinator/history.h"
#include "server/coordinator/lowest_clocks.h"
#include "server/coordinator/place.h"

namespace lodestone::server {

class Membership {
 public:
  struct Options {
    std::string cluster;   // cluster.name.
    uint32_t servers = 1;  // Places for servers.
    uint32_t workers = 1;  // Places for workers.
    uint32_t shards = 1;
    uint32_t replicas = 1;  // Servers that hold each shard: 2 are an owner and a follower.
    uint32_t lease_ms = 10'000;
    bool ends_with_server_0 = true;     // The ps with index 0 serves the coordinator: their lives end together.
    Incarnation first_incarnation = 1;  // FirstIncarnation of the start.
    const TimeSource* time = nullptr;   // Must outlive this. Events count by it: milliseconds since 1970.
  };
  explicit Membership(Options options);

  // What must survive the coordinator, and a number that grows with every change of it.
  v1::CoordinatorState SaveState() const;
  uint64_t changes() const { return changes_; }
  // Grows with every change of what Route tells, but for who is away.
  uint64_t route_changes() const { return route_changes_; }

  // Goes on from what SaveState gave in another life. Whoever lived then gets a whole lease from now on to be heard of
  // (but for a ps that has ended with its coordinator); what a worker has reached is unknown, so that it is behind
  // every clock, until then. Incarnations and the epoch go on above those of the state. With another number of servers
  // than then, all must join before there is a map again; of workers, places come or go at the end. A shard whose owner
  // has ended goes to the follower that was in sync as soon as that one is heard of. What this changes of the state (a
  // cluster that has followers now, or none any more) counts as changes().
  // A run that all workers have left in good order is over: those of the next one are waited for as at the first start.
  // FAILED_PRECONDITION if it is the state of another cluster, DATA_LOSS if it contradicts itself; nothing is changed.
  // REQUIRES: nobody has joined.
  absl::Status Restore(const v1::CoordinatorState& state);

  // Gives a place to a process. INVALID_ARGUMENT: another cluster's, another number of shards, no such index, a server
  // without an address. ALREADY_EXISTS, naming the holder: the index is held by a process that lives (a server that
  // comes back at the holder's own address, where nobody else can listen, or that names the holder as its predecessor,
  // whose data folder it could not have otherwise, takes over at once). RESOURCE_EXHAUSTED: no index was asked for and
  // none is free. Indices that nobody held or whose holder died are given before those of processes that left in good
  // order, lowest first. A process that lives, known by its token, is told again what it was told before: the answer
  // may have been lost.
  absl::StatusOr<v1::JoinResponse> Join(const v1::JoinRequest& request);

  // FAILED_PRECONDITION if the lease has ended, the process has left, or the incarnation is not known.
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request);

  // UNAVAILABLE, naming the missing, until all servers have joined and live. From then on there is a map: it says of
  // each server where it is or was last, and whether it is away. UNAVAILABLE too while it is open who is to own a
  // shard, naming the follower that was in sync and has not been heard of by this life of the coordinator.
  absl::StatusOr<v1::RouteResponse> Route() const;

  // What an owner tells of its followers. FAILED_PRECONDITION as Heartbeat; INVALID_ARGUMENT: not a server, no such
  // shard; ABORTED: later ones have come. To be told to the sender after it is saved: it acts on it.
  absl::StatusOr<v1::ReportSyncResponse> ReportSync(const v1::ReportSyncRequest& request);

  // What became of the shards of servers that ended since the last call, one line each.
  std::vector<std::string> TakeFailovers() { return std::exchange(failovers_, {}); }

  // What has happened since the last call, also on servers, as their heartbeats tell: each once, however often sent.
  std::vector<v1::Event> TakeEvents() { return std::exchange(events_, {}); }

  // OK if the process lives, else what Heartbeat would say.
  absl::Status CheckAlive(Incarnation incarnation) const;

  // How far the live workers that still take steps have come. While one of Options::workers has never joined, that is
  // nowhere.
  LowestClocks Lowest() const;

  // The live workers other than `asker` that are behind `clock`, and those that have never joined, one line each; a
  // last line counts those beyond 16.
  std::vector<std::string> Behind(Incarnation asker, Clock clock) const;

  // Those whose lease has ended since the last call, one line each.
  std::vector<std::string> TakeExpired();

  // When the next lease ends that TakeExpired has not told of, on the time source; nullopt if there is none.
  std::optional<int64_t> NextExpiryMs() const;

  // "worker 1 (host:4711)"; "incarnation N" if it is not known.
  std::string NameOf(Incarnation incarnation) const;
  // Whether it is a server's, of this life of the cluster.
  bool IsServer(Incarnation incarnation) const;
  v1::ClusterStatus Status() const;
  // How training goes on.
  Moment Now() const;
  // Some worker lives and has not finished; one of another life of the coordinator, once it has been heard of in this.
  bool Works() const;

  // 0 until there is a shard map.
  uint64_t epoch() const { return mapped_ ? epoch_ : 0; }

 private:
  using Place = MemberPlace;

  // Indices below Options::workers that no worker has ever had.
  std::vector<uint32_t> NeverJoined() const;
  bool Alive(const Place& place) const;
  // Alive, and still takes steps; then the clock it has reached for certain.
  bool TakesSteps(const Place& place) const;
  Clock ClockOf(const Place& place) const { return place.silent ? 0 : place.progress.clock(); }
  double SecondsSinceContact(const Place& place) const;
  std::string LastHeard(const Place& place) const;
  std::string Describe(const Place& place) const;
  absl::Status CheckJoin(const v1::JoinRequest& request) const;
  // The place that a live process has which joins once more; null if there is none.
  Place* PlaceOfRetry(const v1::JoinRequest& request);
  absl::StatusOr<Place*> ChoosePlace(const v1::JoinRequest& request);
  v1::JoinResponse AnswerTo(const Place& place) const;
  // `starts`: with an empty memory, not after it has lost its lease.
  void ServerJoined(const Place& server, bool starts);
  void HeardOf(Place* place);

  // membership_replicas.cc.
  bool HasFollowers() const { return !followers_.empty(); }
  // A life of `server` ends: its shards go to the followers that are in sync, and it is not in sync with anybody.
  void TakeOut(const Place& server);
  // What TakeOut does with a shard that it owns.
  enum class Fate { kMoves, kStays, kWaits };
  Fate Decide(ShardId shard);
  // The shard is its follower's from the next epoch on.
  void Promote(ShardId shard);
  // Those that waited for `server`.
  void PromoteUndecided(const Place& server);
  // Finds a live follower for each shard that has none: who owns and follows the fewest.
  void AssignFollowers();
  bool Report(const Place& owner, const v1::ReportSyncRequest::Report& report);
  void RouteChanged();
  void NewEpoch();
  absl::Status CheckDecided() const;
  absl::Status CheckReplicas(const v1::CoordinatorState& state) const;
  void SaveReplicas(v1::CoordinatorState* state) const;
  // REQUIRES: the owners are restored.
  void RestoreReplicas(const v1::CoordinatorState& state);
  bool TellsTerms() const;
  absl::Status CheckState(const v1::CoordinatorState& state) const;
  void RestorePlace(const v1::CoordinatorState::Place& state, Place* place);

  // membership_status.cc.
  void RecordProgress(Place* place, const v1::WorkerProgress& progress);
  void RecordServer(Place* place, const v1::HeartbeatRequest& request);
  void Note(absl::string_view kind, const Place& place, std::string text);
  // `moved`: the shards of ps `from` that ps `to` owns now.
  void NoteMoved(uint32_t from, uint32_t to, const std::vector<ShardId>& moved);
  bool Works(const Place& worker) const;
  double SamplesPerSecond(const Place& place) const;
  v1::MemberStatus StatusOf(const Place& place) const;

  const Options options_;
  std::vector<Place> servers_, workers_;  // By index; never resized.
  absl::flat_hash_map<Incarnation, Place*> by_incarnation_;
  const int64_t start_ms_;
  Incarnation next_incarnation_;
  uint64_t changes_ = 0, route_changes_ = 0, epoch_ = 0;
  bool mapped_ = false;  // There is a shard map.
  // By shard.
  std::vector<uint32_t> owners_;
  std::vector<uint64_t> terms_;      // The epoch at which it got another owner.
  std::vector<uint32_t> followers_;  // Index plus one; 0: nobody. This and those below are empty without followers.
  std::vector<bool> in_sync_;
  std::vector<bool> undecided_;  // Its follower is in sync and silent, and the owner's life in which it was has ended.
  std::vector<std::string> failovers_;  // TakeFailovers.
  std::vector<v1::Event> events_;       // TakeEvents.
};

}  // namespace lodestone::server
