// The current subscribers of a server with their broadcast periods, and the thread that serves them. The Broadcaster
// and the store's broadcast listener share one: it lives as long as the last of them.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "server/rpc/broadcast_queue.h"
#include "server/rpc/broadcast_schedule.h"

namespace lodestone::server {

class Subscriber;

class SubscriberSet {
 public:
  // Time between two broadcasts to a subscriber, by its tables' settings of a revision (Catalog::settings_revision).
  struct Period {
    uint64_t revision = 0;
    std::chrono::milliseconds time{0};  // 0: not served by time.
  };

  explicit SubscriberSet(uint32_t subscribers_max) : subscribers_max_(subscribers_max) {}

  const std::shared_ptr<BroadcastQueue>& queue() const { return queue_; }

  // Incremented by CancelAll.
  uint64_t generation() const;
  // Adds a subscriber that is served each `period`. UNAVAILABLE if the set is closed or its generation is not
  // `generation` any more, RESOURCE_EXHAUSTED if it is full.
  absl::Status Add(std::shared_ptr<Subscriber> subscriber, Period period, uint64_t generation);
  // Has those whose period is by settings of another `revision` served each time_of(subscriber) from now on.
  void SetPeriods(uint64_t revision, const std::function<std::chrono::milliseconds(const Subscriber&)>& time_of);

  // Cancels the subscribers of now, because this ps owns other shards.
  void CancelAll();
  // Cancels all subscribers and refuses new ones, because the ps shuts down; ends RunThread.
  void Close();

  // Has the thread serve the subscribers of `tables`, each once.
  void ServeTables(std::span<const TableId> tables);
  // The broadcaster's thread: serves subscribers, and runs those that have a step to take, until Close.
  void RunThread();

  // Subscriber::EndIfUnread of all.
  void EndUnread(int64_t now_ms);

  // Adds the status of each subscriber.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  using Time = BroadcastSchedule::Time;
  struct Entry {
    std::shared_ptr<Subscriber> subscriber;
    Period period;
  };
  using Entries = std::map<uint64_t, Entry>;

  std::optional<Time> NextDue() const;
  // The subscribers of `tables`, ascending, and those whose time has come.
  std::vector<std::shared_ptr<Subscriber>> TakeDue(std::span<const TableId> tables, Time now);
  std::vector<std::shared_ptr<Subscriber>> All() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(uint64_t id);
  Entries::iterator Erase(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Constant after construction.
  const uint32_t subscribers_max_;
  const std::shared_ptr<BroadcastQueue> queue_ = std::make_shared<BroadcastQueue>();

  std::atomic<size_t> size_{0};  // Of entries_.

  mutable Mutex mu_;
  Entries entries_ ABSL_GUARDED_BY(mu_);  // By Subscriber::id.
  BroadcastSchedule schedule_ ABSL_GUARDED_BY(mu_);
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::server
