// The work that waits for the broadcaster's thread: tables that are due, and subscribers that have a step to take.
// Pushes, executors and gRPC's threads leave it here and go on.
//
// Thread-safe. Shared by all that leave work: it lives as long as the last of them.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/base/mutex.h"
#include "common/base/types.h"

namespace lodestone::server {

class Subscriber;

class BroadcastQueue {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Notes that the subscribers of `tables` are due, together.
  void AddDue(std::span<const TableId> tables);
  // Has the subscriber run: on the broadcaster's thread, or on this one if that has ended.
  void Run(std::shared_ptr<Subscriber> subscriber);
  // Ends the current Await, because its time may be another now.
  void Wake();
  // Takes no more work for the thread.
  void Close();

  struct Work {
    std::vector<TableId> due;  // Ascending.
    std::vector<std::shared_ptr<Subscriber>> ready;
  };
  // On the broadcaster's thread: waits for work until Wake or `until` (nullopt: any time). nullopt: it is closed, and
  // all work was taken.
  std::optional<Work> Await(std::optional<Time> until);

 private:
  Mutex mu_;
  CondVar changed_;
  absl::flat_hash_set<TableId> due_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Subscriber>> ready_ ABSL_GUARDED_BY(mu_);
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace lodestone::server
