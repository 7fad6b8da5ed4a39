// An acknowledgement that waits for the followers of one shard or several.
//
// Thread-safe. Shared by all shards that it waits for.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/mutex.h"

namespace lodestone::server {

class PendingAck {
 public:
  using Done = std::function<void(const absl::Status&)>;  // ReplicaSink::Done.

  // It waits for one more. REQUIRES: not all have been settled.
  void Add() { left_.fetch_add(1, std::memory_order_relaxed); }
  // What is called when all are settled. Call once, before the last is.
  void SetDone(Done done) { done_ = std::move(done); }
  // Settles one; the last calls done with the first error, or OK.
  void Settle(const absl::Status& status);

 private:
  std::atomic<size_t> left_{1};
  Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  Done done_;
};
using PendingAckRef = std::shared_ptr<PendingAck>;

// Acknowledgements that are settled together, at the latest by the destructor: to be declared above a lock, so that no
// lock is held then. Not thread-safe.
class SettledAcks {
 public:
  SettledAcks() = default;
  SettledAcks(const SettledAcks&) = delete;
  SettledAcks& operator=(const SettledAcks&) = delete;
  ~SettledAcks() { Run(); }

  void Add(PendingAckRef ack, const absl::Status& status) { list_.emplace_back(std::move(ack), status); }
  bool empty() const { return list_.empty(); }
  void Run();

 private:
  std::vector<std::pair<PendingAckRef, absl::Status>> list_;
};

}  // namespace lodestone::server
