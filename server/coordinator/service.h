// The Coordinator service: Membership behind gRPC. The methods of ControlMethods are called through ControlService, the
// others are callbacks.
//
// Whatever may end a held call of AwaitClock (progress, a worker that leaves, the end of a lease, its timeout) checks
// those that are held (ClockCalls). One thread sleeps until the next lease or hold ends, and looks at the time often
// enough to notice that this process stood still (stopped, swapped out): then no lease ends for it.
//
// A ps or worker whose process dies while its machine lives is noticed by a ProcessWatch, and loses its lease at once:
// a worker where it said that it can be watched, and its machine can be reached from here.
//
// With somewhere to save the state, no answer contains what another life of the coordinator would not know: answers
// with news (Join, Route, ReportSync, Validate, leaving) wait for the StateSaver. If the state cannot be saved they are
// UNAVAILABLE; a process that then asks again gets the same place.
//
// Where access is controlled, calls in the name of a server need the role admin; the rest is checked by Access.
//
// Thread-safe. Must outlive the gRPC server that it is registered with; call Shutdown before that server's, whose
// shutdown waits for held calls. (Where another service passes calls on to this one, it must outlive the methods.)
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/rpc/process_watch.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/coordinator_state.pb.h"
#include "server/auth/access.h"
#include "server/auth/authorized_caller.h"
#include "server/coordinator/clock_calls.h"
#include "server/coordinator/control_methods.h"
#include "server/coordinator/history.h"
#include "server/coordinator/membership.h"
#include "server/coordinator/state_saver.h"
#include "server/monitoring/event_log.h"

namespace lodestone::server {

class CoordinatorService final : public v1::Coordinator::CallbackService, public ControlMethods {
 public:
  using Save = StateSaver::Save;
  // Whether this process may still speak for the cluster. Once it may not, it never may again.
  using Leads = std::function<bool()>;
  // `save` may be null: then the state ends with the process. So may `leads`: it always may. What is answered is only
  // sent to the caller if it may after the answer was found; otherwise the caller gets UNAVAILABLE. `access` may be
  // null, and must outlive this: then every caller may do everything.
  explicit CoordinatorService(const Membership::Options& options, Save save = nullptr, Leads leads = nullptr,
                              Access* access = nullptr);
  // Ends the held calls, and waits until they have ended.
  ~CoordinatorService() override;

  // As Membership::Restore. Leases begin now: call it when the first calls can come soon, and before they do.
  absl::Status Restore(const v1::CoordinatorState& state);
  // The state, whether saved or not.
  v1::CoordinatorState State() const;

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context, const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override;
  grpc::ServerUnaryReactor* AwaitClock(grpc::CallbackServerContext* context, const v1::AwaitClockRequest* request,
                                       v1::AwaitClockResponse* response) override;
  grpc::ServerUnaryReactor* Validate(grpc::CallbackServerContext* context, const v1::ValidateRequest* request,
                                     v1::ValidateResponse* response) override;
  grpc::ServerUnaryReactor* LeaseRanges(grpc::CallbackServerContext* context, const v1::LeaseRangesRequest* request,
                                        v1::LeaseRangesResponse* response) override;
  void HandleHeartbeat(const grpc::ServerContextBase& context, const v1::HeartbeatRequest& request,
                       v1::HeartbeatResponse* response, Done done) override;
  void HandleRoute(const grpc::ServerContextBase& context, const v1::RouteRequest& request, v1::RouteResponse* response,
                   Done done) override;
  void HandleReportSync(const grpc::ServerContextBase& context, const v1::ReportSyncRequest& request,
                        v1::ReportSyncResponse* response, Done done) override;

  // What an operator decides, as Membership's: `done` gets the answer once it is saved, perhaps within the call.
  // UNAVAILABLE if it cannot be, or if this process does not lead any more.
  template <typename Response>
  using Decided = std::function<void(absl::StatusOr<Response>)>;
  void Promote(const v1::PromoteRequest& request, Decided<v1::PromoteResponse> done);
  void AcceptLoss(const v1::AcceptLossRequest& request, Decided<v1::AcceptLossResponse> done);
  void Move(const v1::MoveRequest& request, Decided<v1::MoveResponse> done);
  void Drain(const v1::DrainRequest& request, Decided<v1::DrainResponse> done);
  void PauseTraining(const v1::PauseTrainingRequest& request, Decided<v1::PauseTrainingResponse> done);

  // Looks at the time: logs the leases that have ended, answers the held calls that can be, and adds to the history if
  // it is time. Happens by itself; for tests that move the time by hand.
  void CheckTime();

  // Processes, by incarnation, are gone: their leases end now, unless they have been heard of since.
  void NoteGone(std::span<ProcessWatch::Gone> gone);
  // As Membership::NoteGoneAt.
  void NoteGoneAt(const std::string& address);

  // Ends all held calls with UNAVAILABLE, and refuses further ones. What has changed is saved once more.
  void Shutdown();

  // Sets the cluster and adds the held calls, and a state that cannot be saved, to the waits.
  void FillStatus(v1::StatusResponse* status) const;
  // What has happened in the cluster since this coordinator serves it, as Admin.Events; and how training has gone on.
  v1::EventsResponse Events(uint64_t after_id) const { return events_.Tell(after_id); }
  v1::HistoryResponse TellHistory() const;

 private:
  // Answers a call of a worker with what `method` makes of it, once that is saved.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* AnswerSaved(grpc::CallbackServerContext* context,
                                        absl::StatusOr<Response> (Membership::*method)(const Request&),
                                        const Request& request, Response* response);
  template <typename Request, typename Response>
  void Decide(absl::StatusOr<Response> (Membership::*decide)(const Request&), const Request& request,
              Decided<Response> done);
  // Renews all leases if this process has stood still since the last call. To be called before a lease is judged.
  void NoticeStall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Remembers a process that was refused, and returns whether it was before: one that waits for its place asks twice a
  // second.
  bool NoteRefused(const v1::JoinRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Has the processes watched that live now.
  void WatchProcesses() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What a call may have changed beside its answer: logs failovers, passes events on, and has the state saved.
  // `epoch_before` the call.
  void Settle(uint64_t epoch_before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddToHistory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // When the next lease or hold ends, or the history goes on.
  std::optional<int64_t> NextWakeMs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunTimer();
  // The caller, if it may speak in the name of a server; otherwise PERMISSION_DENIED that says `what` it may not do.
  absl::StatusOr<std::shared_ptr<Caller>> AdminOf(const grpc::ServerContextBase& context, const char* method,
                                                  const char* what) const;
  // Whether a process is a server, of this life of the cluster.
  bool IsServer(Incarnation incarnation) const;
  bool AllSaved() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return saver_.IsSaved(membership_.changes()); }
  // Whether `call`, if it is answered with `status`, has to wait until everything is saved (`saved`: what its answer
  // contains already is), as StateSaver::Hold.
  bool WaitsForSave(grpc::ServerUnaryReactor* call, bool saved, absl::Status* status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return status->ok() && !saved && saver_.Hold(call, status);
  }
  bool WaitsForSave(const Done& done, bool saved, absl::Status* status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto tell = [this, done](const absl::Status& told) { done(OrNotLeading(told)); };
    return status->ok() && !saved && saver_.Hold(tell, status);
  }
  std::optional<StateSaver::Snapshot> ChangedSince(uint64_t changes) const;
  bool MayLead() const { return leads_ == nullptr || leads_(); }
  // The status that the caller of a method gets that ended with `status`.
  absl::Status OrNotLeading(const absl::Status& status) const;
  grpc::Status Told(const absl::Status& status) const;

  // Constant after construction.
  const SteadyTime steady_;
  const TimeSource* const time_;
  const TimeSource* const stall_time_;
  const int64_t lease_ms_;
  const Leads leads_;
  Access* const access_;

  EventLog events_;  // Synchronises itself.

  mutable Mutex mu_;
  CondVar wake_timer_;
  Membership membership_ ABSL_GUARDED_BY(mu_);
  History history_ ABSL_GUARDED_BY(mu_);
  int64_t looked_ms_ ABSL_GUARDED_BY(mu_);  // NoticeStall's last call, by stall_time_.
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<uint64_t> watched_changes_ ABSL_GUARDED_BY(mu_);  // MemberTable::changes at the last WatchProcesses.
  std::vector<ProcessWatch::Process> watched_ ABSL_GUARDED_BY(mu_);
  std::set<uint64_t> refused_ ABSL_GUARDED_BY(mu_);  // Hashes of peer and token, kRefusedMax at most.

  ClockCalls clock_calls_;  // Synchronises itself; may be called with mu_ held.

  // Last: their threads use all of the above.
  StateSaver saver_;  // Synchronises itself; may be called with mu_ held.
  std::thread timer_;
  std::unique_ptr<ProcessWatch> watch_ ABSL_GUARDED_BY(mu_);  // Null: no process is watched.
};

}  // namespace lodestone::server
