// A subscription at one ps. Whenever the stream ends, it is renewed at the ps's newest address and continues from what
// is held.
//
// Thread-safe. The listener is called on a connection's thread, one call after the other.
//
// The destructor ends the stream and waits until no callback runs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/retry.h"
#include "common/base/timer.h"
#include "common/base/types.h"
#include "worker/client/delta_reader.h"
#include "worker/client/server_sessions.h"
#include "worker/client/shard_positions.h"
#include "worker/client/types.h"
#include "worker/rpc/connection.h"

namespace lodestone::worker {

class Subscription {
 public:
  struct Options {
    Incarnation incarnation = 0;
    uint32_t server = 0;                        // Index of the ps.
    bool wanted = true;                         // As Follow's.
    std::vector<const TableHandle*> tables;     // Must outlive the subscription.
    std::shared_ptr<ShardPositions> positions;  // What is held of them, by the streams of all servers.
    SubscriptionListener listener;
    std::function<void(const absl::Status&)> on_lost;  // Called once if the ps finally refuses it.
    std::function<void()> on_unreachable;              // As ServerChannel's.
    ServerSessions* sessions = nullptr;                // These must outlive the subscription.
    Timer* timer = nullptr;
    uint64_t seed = 0;
  };
  // Starts it, over `connection`. `peer`: "ps 1 at host:port".
  Subscription(std::string peer, std::unique_ptr<Connection> connection, Options options);
  ~Subscription();
  Subscription(const Subscription&) = delete;
  Subscription& operator=(const Subscription&) = delete;

  // Replaces the connection and the name of the ps: the subscription is renewed there at once.
  // Returns when no callback of the former connection runs.
  // REQUIRES: not called from a callback, nor during the destructor.
  void Redirect(std::string peer, std::unique_ptr<Connection> connection);

  // The shard map has changed: a renewal that is due is tried at once. Not `wanted`: the ps is away and owns nothing,
  // and a stream that has ended is not renewed until it is wanted. REQUIRES: as Redirect.
  void Follow(bool wanted);

 private:
  // The state when a stream was started.
  struct Started {
    uint64_t redirects = 0;  // It goes over the connection that was the newest after so many.
    bool known = false;      // The ps knew this worker.
  };

  void Start();
  void OnEnd(const absl::Status& status, const Started& started);

  const Options options_;
  std::map<TableId, const TableHandle*> tables_;  // Constant after construction.

  Mutex mu_;
  CondVar stopped_;
  std::string peer_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Connection> connection_ ABSL_GUARDED_BY(mu_);  // As ServerChannel::place_.
  uint64_t redirects_ ABSL_GUARDED_BY(mu_) = 0;
  Backoff backoff_ ABSL_GUARDED_BY(mu_);
  int64_t started_ms_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t logged_ms_ ABSL_GUARDED_BY(mu_) = 0;
  bool wanted_ ABSL_GUARDED_BY(mu_) = true;
  bool resting_ ABSL_GUARDED_BY(mu_) = false;  // Until it is wanted.
  Timer::Id pause_ ABSL_GUARDED_BY(mu_) = 0;   // Until the next attempt.
  int starting_ ABSL_GUARDED_BY(mu_) = 0;      // Calls of Start at work.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::worker
