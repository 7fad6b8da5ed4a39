// Calls to one ps, each tried again until it succeeds, fails for good, or belongs to another ps; wherever the ps is by
// then.
//
// Thread-safe. Callbacks run on a connection's thread or the timer's, or on that of Follow (or the caller's own, if
// calls have been cancelled) and must be quick.
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
#include "common/base/mutex.h"
#include "common/base/retry.h"
#include "common/base/time_source.h"
#include "common/base/timer.h"
#include "common/wire/shard_map.h"
#include "grpcpp/support/slice.h"
#include "proto/parameter_server.pb.h"
#include "worker/rpc/call_payload.h"
#include "worker/rpc/connection.h"

namespace lodestone::worker {

class Caller {
 public:
  struct Options {
    uint32_t server = 0;  // Index of the ps.
    RetryPolicy policy;
    Timer* timer = nullptr;  // Must outlive this.
    uint64_t seed = 0;
    // Called when the ps could not be reached, or did not answer in time: another one may own its shards by now.
    std::function<void()> on_unreachable;
  };
  // `peer` is what messages call the ps: "ps 1 at host:port". Calls take turns on `connections`.
  Caller(std::string peer, std::vector<std::unique_ptr<Connection>> connections, Options options);
  ~Caller();
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  // From now on the ps is at the end of `connections`, and is called `peer`. Calls under way or in a pause are sent
  // there at once as they were sent before (a push keeps its sequence); an error that an attempt at the former place
  // ends with counts for nothing. Returns when no callback of the former connections runs. REQUIRES: not called from a
  // callback, nor during Cancel or the destructor.
  void Redirect(std::string peer, std::vector<std::unique_ptr<Connection>> connections);

  // From now on calls of shards that the ps does not own by `map`, and creations of tables at one that is away and owns
  // nothing, end with ABORTED, those under way and in a pause at once, whatever becomes of what was sent. All others
  // stay. REQUIRES: as Redirect; `map` is newer than the one before.
  void Follow(std::shared_ptr<const ShardMap> map);

  // What is sent.
  struct Message {
    v1::Call call;             // Has no id yet.
    CallNumbers numbers;       // Kept until it is answered; gone when `done` gets the answer.
    std::string what;          // Names the call in messages.
    uint64_t epoch = 0;        // Of the shard map by which it is sent to this ps.
    int64_t started_ms = 0;    // When its first attempt began, at this ps or another (SteadyTime); 0: not yet.
    uint32_t turned_back = 0;  // How often another call with it has ended with ABORTED.
  };
  // Gets back what was sent: to take if the answer is an error, only to look at otherwise.
  using Done = std::function<void(absl::StatusOr<Connection::Answer>, Message* message)>;
  // Sends `message`. An error that `done` gets names the call, the peer and the attempts; its code is the last
  // attempt's, CANCELLED after Cancel(). ABORTED, which is not tried again: the ps does not own a shard of it.
  void Call(Message message, Done done);

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
  void OnFailure(Pending* call, absl::Status status);
  void OnPauseOver(Pending* call);
  // Tells what became of a call, of which `message` was sent, and forgets it.
  void Finish(Pending* call, absl::StatusOr<Connection::Answer> answer, Message* message);
  std::string WhereOf(const Pending& call, const Message& message) const;
  void Forget(Pending* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Report();

  const Options options_;
  const SteadyTime time_;
  Timer* const timer_;  // Synchronises itself.

  mutable Mutex mu_;
  CondVar idle_;
  // The newest. Attempts keep theirs alive, and Redirect the former one until its connections are closed, so that none
  // is destroyed on a thread that its closing would wait for.
  std::shared_ptr<const Place> place_ ABSL_GUARDED_BY(mu_);
  uint64_t redirects_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<const ShardMap> map_ ABSL_GUARDED_BY(mu_);          // Of Follow; null before.
  std::list<std::unique_ptr<Pending>> pending_ ABSL_GUARDED_BY(mu_);  // In the order of their first attempts.
  uint64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  size_t next_connection_ ABSL_GUARDED_BY(mu_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  Timer::Id report_ ABSL_GUARDED_BY(mu_) = 0;
};

// Calls and waits for the answer.
absl::StatusOr<Connection::Answer> CallAndWait(Caller* caller, v1::Call call, std::string what);

}  // namespace lodestone::worker
