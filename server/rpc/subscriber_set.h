// The current subscribers of a server with their broadcast periods. The Broadcaster, its timer and the store's
// broadcast listener share one: it lives as long as the last of them.
//
// Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"

namespace lodestone::server {

class Subscriber;

class SubscriberSet {
 public:
  explicit SubscriberSet(uint32_t subscribers_max) : subscribers_max_(subscribers_max) {}

  // Incremented by CancelAll.
  uint64_t generation() const;
  // Adds a subscriber that is served each `period` (0: not by time). UNAVAILABLE if the set is closed or its generation
  // is not `generation` any more, RESOURCE_EXHAUSTED if it is full.
  absl::Status Add(std::shared_ptr<Subscriber> subscriber, std::chrono::milliseconds period, uint64_t generation);

  // Cancels the subscribers of now, because this ps owns other shards.
  void CancelAll();
  // Cancels all subscribers and refuses new ones, because the ps shuts down; ends RunTimer.
  void Close();

  // Serves the subscribers of a table.
  void ServeTable(TableId table);
  // Serves subscribers by time until Close. Sleeps until the next one is due.
  void RunTimer();

  // Adds the status of each subscriber.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Entry {
    std::shared_ptr<Subscriber> subscriber;
    std::chrono::milliseconds period{0};  // 0: not served by time.
    Time next;
  };

  void RemoveFinished() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The subscribers that are due at `now`; sets their next times. `next`: the earliest of all.
  std::vector<std::shared_ptr<Subscriber>> TakeDue(Time now, std::optional<Time>* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const uint32_t subscribers_max_;

  mutable Mutex mu_;
  CondVar changed_;  // entries_ or closed_.
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mu_);
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::server
