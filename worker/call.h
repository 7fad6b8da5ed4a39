// Calls to one ps, each tried again until it succeeds or fails for good, wherever the ps is by then.
//
// Thread-safe. Callbacks run on a connection's thread or the timer's (or the caller's own, if calls have been
// cancelled) and must be quick.
//
// The caller of a call owns nothing of it; the destructor cancels what is under way and waits for the callbacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/retry.h"
#include "common/time_source.h"
#include "grpcpp/support/slice.h"
#include "proto/parameter_server.pb.h"
#include "worker/connection.h"
#include "worker/timer.h"

namespace lodestone {

class Caller {
 public:
  // `peer` is what messages call the ps: "ps 1 at host:port". Calls take turns on `connections`. `timer` must outlive
  // this.
  Caller(std::string peer, std::vector<std::unique_ptr<Connection>> connections, const RetryPolicy& policy,
         Timer* timer, uint64_t seed);
  ~Caller();
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // From now on the ps is at the end of `connections`, and is called `peer`. Calls under way or in a pause are sent
  // there at once as they were sent before (a push keeps its sequence); an error that an attempt at the former place
  // ends with counts for nothing. Returns when no callback of the former connections runs. REQUIRES: not called from a
  // callback, nor during Cancel or the destructor.
  void Redirect(std::string peer, std::vector<std::unique_ptr<Connection>> connections);

  using Done = Connection::Done;
  // Makes `call`, which has no id yet, with `payload`, which is kept until it is answered. `what` names the call in
  // messages. An error that `done` gets names the call, the peer and the attempts; its code is the last attempt's,
  // CANCELLED after Cancel().
  void Call(v1::Call call, std::vector<grpc::Slice> payload, std::string what, Done done);

  // Ends all calls with CANCELLED, those to come at once, and waits until no callback runs.
  void Cancel();

  // What the oldest call waits for and since when, if that is longer than `ms`: "push sequence=12 to ps 1 at host:port,
  // attempt 4 since 3.1 s: UNAVAILABLE: …". Empty otherwise.
  std::string WaitingLongerThan(int64_t ms) const;

  std::string peer() const;

 private:
  struct Pending;
  // Where the ps is.
  struct Place {
    std::string peer;
    std::vector<std::unique_ptr<Connection>> connections;
  };

  void Attempt(Pending* call);
  void OnAttemptDone(Pending* call, absl::StatusOr<Connection::Answer> answer);
  void OnPauseOver(Pending* call);
  void Finish(Pending* call, absl::StatusOr<Connection::Answer> answer);
  void Report();

  const RetryPolicy policy_;
  const uint64_t seed_;
  const SteadyTime time_;
  Timer* const timer_;  // Synchronises itself.

  mutable Mutex mu_;
  CondVar idle_;
  // The newest. Attempts keep theirs alive, and Redirect the former one until its connections are closed, so that none
  // is destroyed on a thread that its closing would wait for.
  std::shared_ptr<const Place> place_ ABSL_GUARDED_BY(mu_);
  uint64_t redirects_ ABSL_GUARDED_BY(mu_) = 0;
  std::list<std::unique_ptr<Pending>> pending_ ABSL_GUARDED_BY(mu_);  // In the order of their first attempts.
  uint64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  size_t next_connection_ ABSL_GUARDED_BY(mu_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  Timer::Id report_ ABSL_GUARDED_BY(mu_) = 0;
};

// Calls and waits for the answer.
absl::StatusOr<Connection::Answer> CallAndWait(Caller* caller, v1::Call call, std::string what);

}  // namespace lodestone
