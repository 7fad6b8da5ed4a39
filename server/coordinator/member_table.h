// The processes of a cluster: which process holds which place, its lease, and what its heartbeats have reported.
//
// A process that is not heard of for the length of its lease is dead; its incarnation never lives again, and its index
// is free for the next that joins. Time is only looked at when a method is called.
//
// Not thread-safe. Memory is bounded by the configured numbers of servers and workers: each index remembers its latest
// holder. References to places stay valid as long as the table.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/coordinator.pb.h"
#include "proto/coordinator_state.pb.h"
#include "server/coordinator/cluster_options.h"
#include "server/coordinator/event_queue.h"
#include "server/coordinator/member_place.h"

namespace lodestone::server {

class MemberTable {
 public:
  // Both must outlive this. Processes that join, leave or die are noted in `events`.
  MemberTable(const ClusterOptions* options, EventQueue* events);
  MemberTable(const MemberTable&) = delete;
  MemberTable& operator=(const MemberTable&) = delete;

  // By index.
  const MemberPlaces& servers() const { return servers_; }
  const MemberPlaces& workers() const { return workers_; }
  // A number that grows with every change of what Save gives, but for progress.
  uint64_t changes() const { return changes_; }

  bool Alive(const MemberPlace& place) const;
  // How long the lease of the place's holder lasts: those of workers that lease ranges are their own.
  uint32_t LeaseMsOf(const MemberPlace& place) const;
  // Whether the holder's life has ended: no later message of it renews its lease.
  bool HasEnded(const MemberPlace& place) const { return place.left || place.expiry_told; }
  double SecondsSinceContact(const MemberPlace& place) const;
  // "worker 1 (host:4711)".
  std::string Describe(const MemberPlace& place) const;
  // "last heard of 1.2 s ago".
  std::string LastHeard(const MemberPlace& place) const;

  // The place of a process; null if it is not known.
  const MemberPlace* Find(Incarnation incarnation) const;
  MemberPlace* Find(Incarnation incarnation);
  // As Describe; "incarnation N" if it is not known.
  std::string NameOf(Incarnation incarnation) const;
  // OK if the process lives, otherwise FAILED_PRECONDITION: the lease has ended, the process has left, or it is not
  // known.
  absl::Status CheckAlive(Incarnation incarnation) const;

  // The place for a process that joins. The errors are those of Membership::Join.
  struct Choice {
    MemberPlace* place;
    bool is_retry;  // Its holder lives and joins once more: the answer to its first Join may have been lost.
  };
  absl::StatusOr<Choice> Choose(const v1::JoinRequest& request);
  // Whether the sender goes on in the data folder of the holder of `place`, as it was last. Starts in between that
  // never served have changed nothing there, however many they were.
  static bool Continues(const MemberPlace& place, const v1::JoinRequest& request);
  // Notes the death of the holder of `place`, which loses it; false if its life has already ended, or it had no holder.
  bool EndLife(const MemberPlace& place);
  // Makes the sender of `request` the holder of `place`, under a new incarnation. Returns whether it was before, and
  // had lost its lease.
  bool Occupy(MemberPlace* place, const v1::JoinRequest& request);

  // An incarnation for what a worker pushes under another than its own: a range of samples. It is ended for all ps by
  // EndIncarnation.
  Incarnation DrawIncarnation();
  void EndIncarnation(Incarnation incarnation);

  // Gives every process whose lease was not known to have ended a whole one from now on.
  void RenewAll();
  // Renews the lease. Returns whether the process had been silent since it was restored.
  bool HeardOf(MemberPlace* place);
  // Its process is gone: its lease has ended. REQUIRES: it lives.
  void NoteGone(MemberPlace* place);
  // Takes over what a heartbeat reports.
  void Record(MemberPlace* place, const v1::HeartbeatRequest& request);

  // Tells a ps of the workers that have ended since the answer that had `from` as its workers_ended_to.
  void FillEnded(uint64_t from, v1::HeartbeatResponse* response) const;
  // The number of the last one that has ended.
  uint64_t ended_to() const { return ended_to_; }
  // The servers that live and are not known to have heard of all workers that died since this began: they would still
  // take a push of one that goes on behind a cut network, or was only stopped.
  std::vector<const MemberPlace*> ServersWithoutDeaths() const;

  // Calls `on_expired` with each process whose lease has ended since the last call.
  void Expire(absl::FunctionRef<void(const MemberPlace&)> on_expired);
  // When the next lease ends that Expire has not seen, on the time source; nullopt if there is none.
  std::optional<int64_t> NextExpiryMs() const;

  // Adds what must survive the coordinator to `state`.
  void Save(v1::CoordinatorState* state) const;
  // Takes over the processes of a state that CheckState accepts, each with a whole lease from now on (but for a ps that
  // has ended with its coordinator). Servers only if `state` is of as many; workers only if its run is not over.
  void Restore(const v1::CoordinatorState& state);

 private:
  MemberPlaces& PlacesOf(v1::Role role) { return role == v1::ROLE_SERVER ? servers_ : workers_; }
  absl::Status CheckJoin(const v1::JoinRequest& request) const;
  // The place that a live process has which joins once more; null if there is none.
  MemberPlace* PlaceOfRetry(const v1::JoinRequest& request);
  absl::StatusOr<MemberPlace*> PlaceAt(uint32_t index, const v1::JoinRequest& request);
  absl::StatusOr<MemberPlace*> FreePlace(const v1::JoinRequest& request);
  // Adds places for workers up to `index`, where `request` allows that.
  void AddPlaces(uint32_t index, bool any_place);
  // The holder's life is over; by its death.
  void NoteEnded(const MemberPlace& place);
  void NoteDied(const MemberPlace& place);
  void RecordProgress(MemberPlace* place, const v1::WorkerProgress& progress);
  void RecordServer(MemberPlace* place, const v1::HeartbeatRequest& request);
  void RestorePlace(const v1::CoordinatorState::Place& state, MemberPlace* place);

  const ClusterOptions& options_;
  EventQueue* const events_;
  const int64_t start_ms_;
  MemberPlaces servers_, workers_;  // By index. Places for workers are added, and none is removed.
  absl::flat_hash_map<Incarnation, MemberPlace*> by_incarnation_;
  Incarnation next_incarnation_;
  uint64_t changes_ = 0;
  // The workers that ended last, the newest at the end, and its number: above those of an earlier coordinator, whose
  // clock it goes on from.
  std::deque<Incarnation> ended_workers_;
  uint64_t ended_to_;
  uint64_t died_to_ = 0;  // That, when a worker died last.
};

}  // namespace lodestone::server
