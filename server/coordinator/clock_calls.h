// The calls of AwaitClock that a coordinator holds: each without a thread, until the workers' clocks are where it wants
// them, its asker is dead, its time is up, or its caller is gone.
//
// Thread-safe. Its methods may be called with the lock held that guards the members; `told` is called without any.
// Must outlive the gRPC server whose calls it takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "grpcpp/support/server_callback.h"
#include "proto/admin.pb.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/member_table.h"
#include "server/coordinator/worker_clocks.h"

namespace lodestone::server {

class ClockCalls {
 public:
  // `held_max` calls at a time. `told` gives what the caller gets of a call that ended with a status. `time` must
  // outlive this.
  ClockCalls(const TimeSource* time, size_t held_max, std::function<grpc::Status(const absl::Status&)> told);
  // Returns when the calls are gone. REQUIRES: Shutdown was called.
  ~ClockCalls();

  // Holds a call, and returns what gRPC is to have for it: `request` and `response` live until it has ended. One too
  // many ends at once with RESOURCE_EXHAUSTED, and one after Shutdown with UNAVAILABLE.
  grpc::ServerUnaryReactor* Hold(const v1::AwaitClockRequest* request, v1::AwaitClockResponse* response);

  // Calls that are not held any more, for Finish.
  class Call;
  using Answered = std::vector<Call*>;
  // Takes out those that can be answered. Finish ends them; to be called without a lock.
  Answered TakeAnswered(const MemberTable& members);
  void Finish(const Answered& answered);

  // When the time of the next one is up; nullopt: none is held.
  std::optional<int64_t> NextEndMs() const;
  // Adds those that are held to the waits.
  void FillStatus(const MemberTable& members, v1::StatusResponse* status) const;

  // Ends all calls with UNAVAILABLE, and refuses further ones.
  void Shutdown();

 private:
  // Whether `call` can be answered; then it is.
  bool Answer(Call* call, const MemberTable& members, const LowestClocks& clocks, int64_t now_ms)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes `call`; false if it is not held any more.
  bool Forget(Call* call);
  void NoteGone();

  // Constant after construction.
  const TimeSource* const time_;
  const size_t held_max_;
  const std::function<grpc::Status(const absl::Status&)> told_;

  mutable Mutex mu_;
  CondVar gone_;
  absl::flat_hash_set<Call*> held_ ABSL_GUARDED_BY(mu_);
  size_t calls_ ABSL_GUARDED_BY(mu_) = 0;  // That exist, held or ended.
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::server
