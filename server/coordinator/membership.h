// The membership of a cluster: what the calls of processes change in its table of members and in the assignment of its
// shards. Reading goes to these directly.
//
// Its state can be saved and taken up again by another life of the coordinator, which then goes on as if the first had
// only been silent for a while.
//
// Not thread-safe: CoordinatorService guards it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"
#include "proto/coordinator_state.pb.h"
#include "server/coordinator/cluster_options.h"
#include "server/coordinator/event_queue.h"
#include "server/coordinator/member_table.h"
#include "server/coordinator/ranges.h"
#include "server/coordinator/rebalancer.h"
#include "server/coordinator/shard_assignment.h"
#include "server/coordinator/shard_moves.h"
#include "server/coordinator/training_pause.h"
#include "server/coordinator/validations.h"

namespace lodestone::server {

class Membership {
 public:
  using Options = ClusterOptions;
  explicit Membership(Options options);

  const MemberTable& members() const { return members_; }
  const ShardAssignment& shards() const { return shards_; }
  const Validations& validations() const { return validations_; }
  const Ranges& ranges() const { return ranges_; }

  // What must survive the coordinator, and a number that grows with every change of it.
  v1::CoordinatorState SaveState() const;
  uint64_t changes() const {
    return members_.changes() + shards_.changes() + moves_.changes() + validations_.changes() + ranges_.changes() +
           pause_.changes();
  }

  // Goes on from what SaveState gave in another life. The processes of then get a whole lease from now on to be heard
  // of (but for a ps that has ended with its coordinator); what a worker has reached is unknown, so that it is behind
  // every clock, until then. Incarnations and the epoch go on above those of the state. With another number of servers
  // than then, all must join before there is a map again; of workers, places come or go at the end. A shard whose owner
  // has ended goes to a follower that was in sync as soon as one is heard of. What this changes of the state (a
  // cluster that has followers now, or none any more) counts as changes().
  // A run that all workers have shut down cleanly is over: those of the next one are waited for as at the first start.
  // FAILED_PRECONDITION if it is the state of another cluster, DATA_LOSS if it contradicts itself; nothing is changed.
  // REQUIRES: no process has joined.
  absl::Status Restore(const v1::CoordinatorState& state);

  // Gives a place to a process, whose watched_at is to be believed (watched_address.h). INVALID_ARGUMENT: another
  // cluster's, another number of shards, no such index, a server without an address. ALREADY_EXISTS, naming the holder:
  // the index is held by a process that lives (a server that comes back at the holder's own address, where no other
  // process can listen, or that names the holder as its predecessor or has its data folder, which it could not have
  // otherwise, takes over at once). RESOURCE_EXHAUSTED: no index was asked for and none is free. Indices that were
  // never held or whose holder died are given before those of processes that shut down cleanly, lowest first. A process
  // that lives, known by its token, gets the same answer as before: the first one may have been lost.
  absl::StatusOr<v1::JoinResponse> Join(const v1::JoinRequest& request);

  // FAILED_PRECONDITION if the lease has ended, the process has left, or the incarnation is not known.
  absl::StatusOr<v1::HeartbeatResponse> Heartbeat(const v1::HeartbeatRequest& request);

  // A worker that trains has reached this clock. Nothing if it does not live.
  void NoteClock(Incarnation worker, Clock clock);

  // What a worker asks and reports of validations. FAILED_PRECONDITION as Heartbeat; INVALID_ARGUMENT: not a worker, or
  // a number that was never claimed. To be answered after it is saved: patience outlives the coordinator.
  absl::StatusOr<v1::ValidateResponse> Validate(const v1::ValidateRequest& request);

  // Ranges of samples for a worker. FAILED_PRECONDITION as Heartbeat; the other errors are those of Ranges::Lease. To
  // be answered after it is saved: what a worker has must not be given to another by the coordinator's next life.
  absl::StatusOr<v1::LeaseRangesResponse> LeaseRanges(const v1::LeaseRangesRequest& request);

  // A process was found dead, `ended_ms` after the last sign of its life: its lease ends now. False: it has been heard
  // of since, and goes on; or it is not known any more.
  bool NoteGone(Incarnation incarnation, int64_t ended_ms);
  // The same of the ps at `address` that served the coordinator before this life of it, unless it has been heard of.
  void NoteGoneAt(const std::string& address);

  // The coordinator itself has stood still: what was sent meanwhile is still to be read, so that nobody's silence means
  // anything. Everybody gets a whole lease.
  void RenewAll() { members_.RenewAll(); }

  // What an owner reports of its followers. FAILED_PRECONDITION as Heartbeat; INVALID_ARGUMENT: not a server, no such
  // shard; ABORTED: later ones have come. To be sent to the owner after it is saved: it acts on it.
  absl::StatusOr<v1::ReportSyncResponse> ReportSync(const v1::ReportSyncRequest& request);

  // The shard map for a process, as ShardAssignment::Route, which a ps may act on from now on. To be sent after it is
  // saved.
  absl::StatusOr<v1::RouteResponse> Route(const v1::RouteRequest& request);

  // What an operator decides of shards that nobody serves: Admin.Promote and Admin.AcceptLoss, to be answered after it
  // is saved. FAILED_PRECONDITION too while there is no shard map.
  absl::StatusOr<v1::PromoteResponse> Promote(const v1::PromoteRequest& request);
  absl::StatusOr<v1::AcceptLossResponse> AcceptLoss(const v1::AcceptLossRequest& request);

  // What an operator plans of shards that are served: Admin.Move and Admin.Drain, as ShardMoves; likewise.
  absl::StatusOr<v1::MoveResponse> Move(const v1::MoveRequest& request);
  absl::StatusOr<v1::DrainResponse> Drain(const v1::DrainRequest& request);
  // Admin.PauseTraining, as TrainingPause.
  absl::StatusOr<v1::PauseTrainingResponse> PauseTraining(const v1::PauseTrainingRequest& request);

  v1::ClusterStatus Status() const;

  // The processes whose lease has ended since the last call, one line each.
  std::vector<std::string> TakeExpired();
  // The failovers since the last call, one line each.
  std::vector<std::string> TakeFailovers() { return shards_.TakeFailovers(); }
  // What has happened since the last call, also on servers, as their heartbeats report: each once, however often sent.
  std::vector<v1::Event> TakeEvents() { return events_.Take(); }

 private:
  void HeardOf(MemberPlace* place);
  // The place of a worker that lives and has called. FAILED_PRECONDITION as Heartbeat; INVALID_ARGUMENT, saying that
  // what is no worker does nothing that `does`.
  absl::StatusOr<MemberPlace*> LivingWorker(Incarnation incarnation, const char* does);
  // A worker joins. Where none lives, and all that had a place have left or were to end early, another run begins,
  // unless the worker was started together with the one that joined last (JoinRequest.launch): then the run is its own.
  void BeginRunIfOver(const std::string& launch);
  // FAILED_PRECONDITION for a server of an earlier life of the cluster of which the coordinator knows nothing, where
  // others serve what the first map gave them: it would lose what it holds.
  absl::Status CheckKnown(const MemberPlace& place, const v1::ServerData& data);
  // OK if an operator may decide about shards of `server` now.
  absl::Status CheckDecidable(uint32_t server) const;
  v1::JoinResponse AnswerTo(const MemberPlace& place) const;

  const Options options_;
  EventQueue events_;
  MemberTable members_;
  ShardAssignment shards_;
  ShardMoves moves_;
  Rebalancer rebalancer_;
  Validations validations_;
  TrainingPause pause_{&members_, options_.time};
  Ranges ranges_{&members_, &pause_, options_.time};
  std::string launch_;          // That of the worker that joined last.
  std::set<uint32_t> refused_;  // Servers, by CheckKnown.
};

}  // namespace lodestone::server
