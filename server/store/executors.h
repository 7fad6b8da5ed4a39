// The executors of a ps: each is the single owner of some of its shards. One more does background work.
//
// A push of many shards takes turns with the pulls that wait for its executor: once it has taken `turn_ns`, it lets
// them go first (IsTurnOver, Executor::Yield).
//
// Thread-safe, but for Stop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "proto/admin.pb.h"
#include "server/shard/executor.h"

namespace lodestone::server {

class Executors {
 public:
  static constexpr int64_t kTurnNs = 1'000'000;

  // At least one.
  explicit Executors(uint32_t count, int64_t turn_ns = kTurnNs);

  size_t size() const { return executors_.size(); }
  Executor& operator[](size_t i) { return *executors_[i]; }
  // Takes work that would keep an executor from its shards for too long; runs it on a thread of its own.
  Executor& background() { return *background_; }

  // Whether the message that runs, and has taken `taken_ns`, is to yield, because messages wait that may run meanwhile.
  // REQUIRES: as Executor::Yield.
  bool IsTurnOver(size_t executor, int64_t taken_ns) const;
  // RESOURCE_EXHAUSTED if the executor has too much to do.
  absl::Status CheckQueue(size_t executor) const;
  // Waits until all that was submitted has run. REQUIRES: no thread submits meanwhile.
  void Drain();
  // Runs what is queued, and ends the executors, but for the background one. REQUIRES: every submission from outside
  // has returned.
  void Stop();
  // The same of the background one. REQUIRES: nothing submits to it any more.
  void StopBackground();
  // Fills executors.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  const int64_t turn_ns_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::unique_ptr<Executor> background_ = std::make_unique<Executor>(Executor::Mode::kThread);
};

}  // namespace lodestone::server
