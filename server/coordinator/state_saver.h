// The saving of the coordinator's state, and the calls that may only be answered once it is saved.
//
// A thread of its own saves, so that a slow disk keeps no other call waiting. If the state cannot be saved, the waiting
// calls end with UNAVAILABLE.
//
// Thread-safe. Its methods may be called with the lock held that Options::changed_since takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "grpcpp/support/server_callback.h"
#include "proto/admin.pb.h"
#include "proto/coordinator_state.pb.h"

namespace lodestone::server {

class StateSaver {
 public:
  // Puts the state where it outlives the process; what it was before counts until this returns OK. Called by one thread
  // at a time, without a lock.
  using Save = std::function<absl::Status(const v1::CoordinatorState&)>;
  // The version of a state.
  struct Version {
    uint64_t changes = 0;        // Membership::changes.
    uint64_t route_changes = 0;  // ShardAssignment::changes.
    uint64_t epoch = 0;          // ShardAssignment::epoch.
    uint64_t ended_to = 0;       // MemberTable::ended_to.
  };
  struct Snapshot {
    Version version;
    v1::CoordinatorState state;
  };
  struct Options {
    const TimeSource* time = nullptr;  // Must outlive this.
    size_t waiting_max = 0;            // Calls that wait.
    Save save;                         // Null: nothing is ever saved, and everything counts as saved.
    // The state, if its Version::changes are others than `changes`. Called by the saver's thread without its lock.
    std::function<std::optional<Snapshot>(uint64_t changes)> changed_since;
    // Ends a call that has waited.
    std::function<void(grpc::ServerUnaryReactor*, const absl::Status&)> finish;
  };
  explicit StateSaver(Options options);
  // Stops, and returns when the calls that wait have ended.
  ~StateSaver();

  // Takes `version` for saved. REQUIRES: nothing has changed since, and no call waits.
  void SetSaved(const Version& version);
  // Saves the state soon, unless the one of `changes` is already saved.
  void SaveSoon(uint64_t changes);
  // Saves once more what has changed, and refuses calls from then on.
  void Stop();

  // Whether the state of `changes`, or a map of `route_changes`, is saved.
  bool IsSaved(uint64_t changes) const;
  bool IsRouteSaved(uint64_t route_changes) const;
  // The map's epoch in the saved state, `current` if nothing is ever saved.
  uint64_t EpochToTell(uint64_t current) const;
  // The same of the number of the last worker, or range, that has ended.
  uint64_t EndedToTell(uint64_t current) const;

  // Takes the call, to end it once everything is saved. False: nothing will be saved any more, and the caller ends it
  // with `status`, which may have become an error.
  bool Hold(grpc::ServerUnaryReactor* call, absl::Status* status);
  // The same of an answer that `done` gives.
  using Done = std::function<void(const absl::Status&)>;
  bool Hold(Done done, absl::Status* status);

  // Adds a state that cannot be saved to the waits.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  void Run();
  void NoteResult(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;  // Constant after construction.

  mutable Mutex mu_;
  CondVar wake_;
  bool wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Done> waiting_ ABSL_GUARDED_BY(mu_);
  Version saved_ ABSL_GUARDED_BY(mu_);
  absl::Status error_ ABSL_GUARDED_BY(mu_);  // Of the last attempt.
  int64_t error_since_ms_ ABSL_GUARDED_BY(mu_) = 0;

  std::thread thread_;  // Last: it uses all of the above. Only if there is somewhere to save.
};

}  // namespace lodestone::server
