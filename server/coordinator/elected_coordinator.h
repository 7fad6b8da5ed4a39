// The Coordinator service of a ps that may be elected to serve it (coordinator.etcd): in each term of its own a
// CoordinatorService that goes on from the state in etcd and saves it there; outside of them every call is UNAVAILABLE
// and says who serves instead.
//
// Thread-safe. Must outlive the gRPC server that it is registered with; call Shutdown before that server's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/rpc/process_watch.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/coordinator_state.pb.h"
#include "server/auth/access.h"
#include "server/coordinator/control_methods.h"
#include "server/coordinator/election.h"
#include "server/coordinator/membership.h"

namespace lodestone::server {

class CoordinatorService;

class ElectedCoordinator final : public v1::Coordinator::CallbackService, public ControlMethods {
 public:
  struct Options {
    Membership::Options membership;  // But for first_incarnation, which is that of each election.
    Election::Options election;
    // What to go on from if there is nothing in etcd. May be null.
    std::function<absl::StatusOr<std::optional<v1::CoordinatorState>>()> first_state;
    // Called when this ps begins and ends to serve. May be null.
    std::function<void(bool serves)> on_change;
    Access* access = nullptr;  // As that of CoordinatorService.
  };
  explicit ElectedCoordinator(Options options);
  // Shuts down if Shutdown was not called.
  ~ElectedCoordinator() override;

  // Begins to run for election, for a ps that others reach at `address`. Call once.
  void Start(const std::string& address) { election_.Start(address); }

  // The other ps of the cluster, by their incarnations: where they are seen listening, one that is elected and dies at
  // once is known to be dead.
  void SetPeers(std::vector<ProcessWatch::Process> peers);

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

  // As CoordinatorService's; UNAVAILABLE, naming who is elected, if this ps is not.
  void Promote(const v1::PromoteRequest& request, std::function<void(absl::StatusOr<v1::PromoteResponse>)> done);
  void AcceptLoss(const v1::AcceptLossRequest& request,
                  std::function<void(absl::StatusOr<v1::AcceptLossResponse>)> done);
  void Move(const v1::MoveRequest& request, std::function<void(absl::StatusOr<v1::MoveResponse>)> done);
  void Drain(const v1::DrainRequest& request, std::function<void(absl::StatusOr<v1::DrainResponse>)> done);
  void PauseTraining(const v1::PauseTrainingRequest& request,
                     std::function<void(absl::StatusOr<v1::PauseTrainingResponse>)> done);

  // As CoordinatorService::State if this ps is elected; otherwise empty.
  v1::CoordinatorState State() const;

  // Serves no more, and lets another ps be elected.
  void Shutdown();

  // As CoordinatorService::FillStatus if this ps is elected; and what keeps it from the election.
  void FillStatus(v1::StatusResponse* status) const;
  // As CoordinatorService's if this ps is elected, otherwise nullopt.
  std::optional<v1::EventsResponse> Events(uint64_t after_id) const;
  std::optional<v1::HistoryResponse> TellHistory() const;

 private:
  // The service of the term while this exists; null if there is none.
  class Use;

  template <typename Request, typename Response>
  using Method = grpc::ServerUnaryReactor* (CoordinatorService::*)(grpc::CallbackServerContext*, const Request*,
                                                                   Response*);
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* PassOn(Method<Request, Response> method, grpc::CallbackServerContext* context,
                                   const Request* request, Response* response);
  template <typename Request, typename Response>
  using Handler = void (ControlMethods::*)(const grpc::ServerContextBase&, const Request&, Response*, Done);
  template <typename Request, typename Response>
  void PassOn(Handler<Request, Response> handler, const grpc::ServerContextBase& context, const Request& request,
              Response* response, Done done);

  void WatchProcesses() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Another ps is elected: watches its process.
  void OnOtherElected(const std::string& address, int64_t lease);
  // The process of one that was elected is gone.
  void OnGone(const std::string& address, int64_t lease);
  absl::Status NotElected() const;
  absl::Status OnElected(int64_t term, std::optional<v1::CoordinatorState> state);
  void EndService();

  // Constant after construction.
  const Options options_;

  mutable Mutex mu_;
  mutable CondVar unused_;
  std::unique_ptr<CoordinatorService> service_ ABSL_GUARDED_BY(mu_);  // Null outside of this ps's terms.
  mutable int uses_ ABSL_GUARDED_BY(mu_) = 0;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  std::string gone_ ABSL_GUARDED_BY(mu_);     // Where the last one that was elected was, if it is dead.
  int64_t gone_ms_ ABSL_GUARDED_BY(mu_) = 0;  // When that was found.
  int64_t watched_ ABSL_GUARDED_BY(mu_) = 0;  // The lease of the one that is watched; 0: none.
  std::string watched_at_ ABSL_GUARDED_BY(mu_);
  std::vector<ProcessWatch::Process> peers_ ABSL_GUARDED_BY(mu_);

  // Synchronise themselves. Their threads use all of the above, and each other: the election's has ended when the watch
  // goes.
  Election election_;
  ProcessWatch watch_;  // On the ps that is elected, or was last, unless it is this one; and on the peers.
};

}  // namespace lodestone::server
