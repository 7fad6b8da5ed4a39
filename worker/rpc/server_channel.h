// The calls of a worker to one ps. Each is tried again, at the ps's newest address, until it succeeds, its time is up,
// or its shards belong to another ps.
//
// Thread-safe. Callbacks run on a connection's thread, the timer's or that of Follow (or the calling thread, if calls
// have been cancelled) and must be quick.
//
// The channel owns its calls; the destructor cancels those in flight and waits for their callbacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/retry.h"
#include "common/base/time_source.h"
#include "common/base/timer.h"
#include "common/wire/shard_map.h"
#include "proto/coordinator.pb.h"
#include "proto/parameter_server.pb.h"
#include "worker/rpc/call_payload.h"
#include "worker/rpc/connection.h"

namespace lodestone::worker {

class ServerChannel {
 public:
  struct Options {
    uint32_t server = 0;  // Index of the ps.
    RetryPolicy policy;
    Timer* timer = nullptr;  // Must outlive this.
    uint64_t seed = 0;
    // Called when the ps could not be reached or did not answer in time: its shards may have another owner.
    std::function<void()> on_unreachable;
  };
  // `peer` names the ps in errors: "ps 1 at host:port". Calls take turns on `connections`.
  ServerChannel(std::string peer, std::vector<std::unique_ptr<Connection>> connections, Options options);
  ~ServerChannel();
  ServerChannel(const ServerChannel&) = delete;
  ServerChannel& operator=(const ServerChannel&) = delete;

  // Replaces the connections and the name of the ps. Calls in flight or backing off are sent again at once, unchanged
  // (a push keeps its sequence); errors of attempts over the former connections are ignored. Returns when no callback
  // of the former connections runs. REQUIRES: not called from a callback, nor during Cancel or the destructor.
  void Redirect(std::string peer, std::vector<std::unique_ptr<Connection>> connections);

  // Applies a newer shard map. Calls for shards that this ps no longer owns complete at once with ABORTED, including
  // those in flight or backing off; so do creations of tables if it is away and owns nothing. REQUIRES: as Redirect;
  // `map` is newer than the one before.
  void Follow(std::shared_ptr<const ShardMap> map);

  // A call with its payload and its history.
  struct Request {
    v1::Call call;             // Has no id yet.
    CallPayload payload;       // Released before `done` gets a successful answer.
    std::string what;          // Names the call in errors.
    uint64_t epoch = 0;        // Of the shard map that routed it to this ps.
    int64_t started_ms = 0;    // Of its first attempt, at any ps (SteadyTime), as far as it counts; 0: none yet.
    uint32_t turned_back = 0;  // How often it has ended with ABORTED.
  };
  // Gets the answer and the request, which it may take if the answer is an error.
  using Done = std::function<void(absl::StatusOr<Connection::Answer>, Request* request)>;
  // Sends `request`. An error names the call, the peer and the attempts; its code is the last attempt's, CANCELLED
  // after Cancel(). ABORTED, which is not retried: the ps does not own a shard of it.
  void Call(Request request, Done done);

  // Ends all calls, later ones too, with CANCELLED, and waits until no callback runs.
  void Cancel();

  // The oldest call, if it has lasted for longer than `ms`: `what` is "push sequence=12 to ps 1 at host:port, attempt 4
  // since 3.1 s: UNAVAILABLE: …".
  std::optional<v1::WaitStatus> WaitLongerThan(int64_t ms) const;

  std::string peer() const;

 private:
  struct Pending;
  // The ps's current address.
  struct Place {
    std::string peer;
    std::vector<std::unique_ptr<Connection>> connections;
  };

  void Attempt(Pending* call);
  void OnAttemptDone(Pending* call, absl::StatusOr<Connection::Answer> answer);
  void OnFailure(Pending* call, absl::Status status);
  void OnPauseOver(Pending* call);
  // Runs the callback of a call, whose request is `request`, and forgets the call.
  void Finish(Pending* call, absl::StatusOr<Connection::Answer> answer, Request* request);
  std::string WhereOf(const Pending& call, const Request& request) const;
  void Forget(Pending* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Report();

  const Options options_;
  const SteadyTime time_;
  Timer* const timer_;  // Synchronises itself.

  mutable Mutex mu_;
  CondVar idle_;
  // The newest. Attempts keep theirs alive, and so does Redirect until the former connections are closed: none is
  // destroyed on a thread that its closing would wait for.
  std::shared_ptr<const Place> place_ ABSL_GUARDED_BY(mu_);
  uint64_t redirects_ ABSL_GUARDED_BY(mu_) = 0;
  std::shared_ptr<const ShardMap> map_ ABSL_GUARDED_BY(mu_);          // Of Follow; null before.
  std::list<std::unique_ptr<Pending>> pending_ ABSL_GUARDED_BY(mu_);  // In the order of their first attempts.
  uint64_t calls_ ABSL_GUARDED_BY(mu_) = 0;
  size_t next_connection_ ABSL_GUARDED_BY(mu_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  Timer::Id report_ ABSL_GUARDED_BY(mu_) = 0;
};

// The wait of a call that ps `server` has not answered, without words.
v1::WaitStatus WaitOf(const ServerChannel::Request& request, uint32_t server, int64_t waited_ms);

}  // namespace lodestone::worker
