// The Coordinator service: Membership behind gRPC, and the held calls of AwaitClock.
//
// AwaitClock holds calls without a thread each: whatever may end one (progress, a worker that leaves, the end of a
// lease, its timeout) checks those that are held. One thread sleeps until the next lease or hold ends.
//
// With somewhere to save the state, nothing is told to anybody that another life of the coordinator would not know:
// answers that tell news (Join, Route, ReportSync, leaving) wait until it is saved, by another thread, so that a slow
// disk keeps nobody's heartbeat waiting. If it cannot be saved they are UNAVAILABLE; who then asks again gets the same
// place.
//
// Thread-safe. Must outlive the gRPC server that it is registered with; call Shutdown before that server's, whose
// shutdown waits for held calls. (Where another service passes calls on to this one, it must outlive the methods.)
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/coordinator_state.pb.h"
#include "server/coordinator/history.h"
#include "server/coordinator/membership.h"
#include "server/monitoring/event_log.h"

namespace lodestone::server {

class CoordinatorService final : public v1::Coordinator::CallbackService {
 public:
  // Puts the state where it outlives the process; what it was before counts until this returns OK. Called by one thread
  // at a time, without a lock.
  using Save = std::function<absl::Status(const v1::CoordinatorState&)>;
  // Whether this process may still speak for the cluster. Once it may not, it never may again.
  using Leads = std::function<bool()>;
  // `save` may be null: then the state ends with the process. So may `leads`: it always may. What is answered is only
  // told to the caller if it may after the answer was found; otherwise the caller gets UNAVAILABLE.
  explicit CoordinatorService(const Membership::Options& options, Save save = nullptr, Leads leads = nullptr);
  // Ends the held calls, and waits until they have ended.
  ~CoordinatorService() override;

  // As Membership::Restore. Leases begin now: call it when the first calls can come soon, and before they do.
  absl::Status Restore(const v1::CoordinatorState& state);
  // The state, whether saved or not.
  v1::CoordinatorState State() const;
  // As Membership::IsServer.
  bool IsServer(Incarnation incarnation) const;

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context, const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context, const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* AwaitClock(grpc::CallbackServerContext* context, const v1::AwaitClockRequest* request,
                                       v1::AwaitClockResponse* response) override;
  grpc::ServerUnaryReactor* Route(grpc::CallbackServerContext* context, const v1::RouteRequest* request,
                                  v1::RouteResponse* response) override;
  grpc::ServerUnaryReactor* ReportSync(grpc::CallbackServerContext* context, const v1::ReportSyncRequest* request,
                                       v1::ReportSyncResponse* response) override;

  // Looks at the time: logs the leases that have ended, answers the held calls that can be, and adds to the history if
  // it is time. Happens by itself; for tests that move the time by hand.
  void CheckTime();

  // Ends all held calls with UNAVAILABLE, and refuses further ones. What has changed is saved once more.
  void Shutdown();

  // Sets the cluster and adds the held calls, and a state that cannot be saved, to the waits.
  void FillStatus(v1::StatusResponse* status) const;
  // What has happened in the cluster since this coordinator serves it, as Admin.Events; and how training has gone on.
  v1::EventsResponse Events(uint64_t after_id) const { return events_.Tell(after_id); }
  v1::HistoryResponse TellHistory() const;

 private:
  class HeldCall;

  // Removes the held calls that can be answered and writes their answers; the caller finishes them without the lock.
  std::vector<HeldCall*> TakeAnswered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether `call` can be answered; then it is.
  bool Answer(HeldCall* call, const LowestClocks& clocks, int64_t now_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What a call may have changed beside its answer: logs who took over, tells what has happened, and has it saved.
  // `epoch_before` the call.
  void Settle(uint64_t epoch_before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddToHistory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // When the next lease or hold ends, or the history goes on.
  std::optional<int64_t> NextWakeMs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunTimer();
  // Whether a call that is answered with `status` has to wait until everything is saved (`saved`: what its answer tells
  // already is): then RunSaves ends it, otherwise the caller does, without the lock.
  bool WaitForSave(grpc::ServerUnaryReactor* reactor, bool saved, absl::Status* status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AllSaved() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return save_ == nullptr || saved_changes_ == membership_.changes();
  }
  void RunSaves();
  bool MayLead() const { return leads_ == nullptr || leads_(); }
  // What the caller of a method that ended with `status` is told.
  grpc::Status Told(const absl::Status& status) const;
  void NoteSaveError(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteAwaitCallGone();
  // Removes `call`; false if it is no longer held.
  bool Forget(HeldCall* call);

  // Constant after construction.
  const TimeSource* const time_;
  const size_t held_max_;
  const size_t unsaved_max_;
  const Save save_;
  const Leads leads_;

  EventLog events_;  // Synchronises itself.

  mutable Mutex mu_;
  CondVar wake_timer_;
  Membership membership_ ABSL_GUARDED_BY(mu_);
  History history_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<HeldCall*> held_ ABSL_GUARDED_BY(mu_);
  size_t await_calls_ ABSL_GUARDED_BY(mu_) = 0;  // That exist, held or ended.
  CondVar await_call_gone_;
  CondVar wake_saver_;
  bool save_wanted_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<grpc::ServerUnaryReactor*> unsaved_ ABSL_GUARDED_BY(mu_);  // Answered, but for RunSaves.
  uint64_t saved_changes_ ABSL_GUARDED_BY(mu_) = 0;                      // Membership::changes() of the saved state.
  uint64_t saved_route_changes_ ABSL_GUARDED_BY(mu_) = 0;                // Membership::route_changes() of it.
  uint64_t saved_epoch_ ABSL_GUARDED_BY(mu_) = 0;                        // Membership::epoch() of it.
  absl::Status save_error_ ABSL_GUARDED_BY(mu_);                         // Of the last attempt.
  int64_t save_error_since_ms_ ABSL_GUARDED_BY(mu_) = 0;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  // Last: they use all of the above.
  std::thread timer_;
  std::thread saver_;  // Only if there is somewhere to save.
};

}  // namespace lodestone::server
