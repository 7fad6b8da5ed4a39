// A subscription at one ps, renewed whenever the stream ends.
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
#include "common/mutex.h"
#include "common/retry.h"
#include "common/types.h"
#include "grpcpp/channel.h"
#include "worker/client.h"
#include "worker/connection.h"
#include "worker/delta_reader.h"
#include "worker/timer.h"

namespace lodestone {

class Subscription {
 public:
  struct Options {
    std::string peer;  // "ps 1 at host:port".
    std::shared_ptr<grpc::Channel> channel;
    grpc::CompletionQueue* queue = nullptr;  // As Connection's; must outlive the subscription.
    size_t message_max_bytes = 64 << 20;     // As Connection's.
    Incarnation incarnation = 0;
    uint32_t shards = 0;
    std::vector<const TableHandle*> tables;  // Must outlive the subscription.
    DeltaListener listener;
    std::function<void(const absl::Status&)> on_lost;  // Called once if the ps refuses the subscription for good.
    Timer* timer = nullptr;                            // Must outlive the subscription.
    uint64_t seed = 0;
  };
  // Starts it.
  explicit Subscription(Options options);
  ~Subscription();
  Subscription(const Subscription&) = delete;
  Subscription& operator=(const Subscription&) = delete;

 private:
  void Start();
  void OnEnd(const absl::Status& status);

  const Options options_;
  std::map<TableId, const TableHandle*> tables_;  // Constant after construction.
  Connection connection_;                         // Synchronises itself.

  Mutex mu_;
  CondVar stopped_;
  Backoff backoff_ ABSL_GUARDED_BY(mu_);
  int64_t started_ms_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t logged_ms_ ABSL_GUARDED_BY(mu_) = 0;
  Timer::Id pause_ ABSL_GUARDED_BY(mu_) = 0;  // Until the next attempt.
  int starting_ ABSL_GUARDED_BY(mu_) = 0;     // Calls of Start at work.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone
