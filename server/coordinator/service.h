// The Coordinator service: Membership behind gRPC, and the held calls of AwaitClock.
//
// AwaitClock holds calls without a thread each: whatever may end one (progress, a worker that leaves, the end of a
// lease, its timeout) checks those that are held. One thread sleeps until the next lease or hold ends.
//
// Thread-safe. Must outlive the gRPC server that it is registered with; call Shutdown before that server's, whose
// shutdown waits for held calls.
#pragma once

#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.grpc.pb.h"
#include "server/coordinator/membership.h"

namespace lodestone {

class CoordinatorService final : public v1::Coordinator::CallbackService {
 public:
  explicit CoordinatorService(const Membership::Options& options);
  ~CoordinatorService() override;

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context, const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context, const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* AwaitClock(grpc::CallbackServerContext* context, const v1::AwaitClockRequest* request,
                                       v1::AwaitClockResponse* response) override;
  grpc::ServerUnaryReactor* Route(grpc::CallbackServerContext* context, const v1::RouteRequest* request,
                                  v1::RouteResponse* response) override;

  // Looks at the time: logs the leases that have ended, and answers the held calls that can be. Happens by itself; for
  // tests that move the time by hand.
  void CheckTime();

  // Ends all held calls with UNAVAILABLE, and refuses further ones.
  void Shutdown();

  // Sets the cluster and adds the held calls to the waits.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  class HeldCall;

  // Removes the held calls that can be answered and writes their answers; the caller finishes them without the lock.
  std::vector<HeldCall*> TakeAnswered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether `call` can be answered; then it is.
  bool Answer(HeldCall* call, const Membership::LowestClocks& clocks, int64_t now_ms)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LogExpired() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // When the next lease or hold ends.
  std::optional<int64_t> NextWakeMs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunTimer();
  // Removes `call`; false if it is no longer held.
  bool Forget(HeldCall* call);

  // Constant after construction.
  const TimeSource* const time_;
  const size_t held_max_;

  mutable Mutex mu_;
  CondVar wake_timer_;
  Membership membership_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<HeldCall*> held_ ABSL_GUARDED_BY(mu_);
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
  std::thread timer_;
};

}  // namespace lodestone
