// The periodic removal of what has outlived its time: idle sessions, and rows past their table's TTL.
//
// Thread-safe. All pointers must outlive the executors.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/types.h"

namespace lodestone::server {

class Catalog;
class CommitLog;
class ServingGate;
class Sessions;
class ShardSet;
struct SweepShare;

class Sweeper {
 public:
  Sweeper(const ServingGate* gate, ShardSet* shards, CommitLog* log, const Catalog* catalog, Sessions* sessions)
      : gate_(gate), shards_(shards), log_(log), catalog_(catalog), sessions_(sessions) {}

  // About once a second. Does nothing before the gate opens. Rows go in updates of their own, on the executors.
  void Tick(int64_t now_ms);
  // No sweep begins any more, and one under way ends after the step that an executor is taking: once the executors have
  // been drained after this, none uses anything outside.
  void Stop() { stopped_.store(true); }

  // Ends the sessions of workers that have left or died, with the marks of their pushes.
  void EndSessions(std::span<const Incarnation> workers);

 private:
  struct Sweep;

  // Logs that sessions are over, and lets the owned shards forget the marks; `log`: of these.
  void ForgetWorkers(std::vector<Incarnation> workers, std::span<const Incarnation> log, bool ended);
  // Takes a step of a sweep, and has the next taken after what came meanwhile. On the executor.
  void SweepStep(size_t executor, const std::shared_ptr<Sweep>& sweep);
  void EvictExpired(ShardId shard, int64_t now_ms, std::vector<SweepShare>* left);

  const ServingGate* const gate_;
  ShardSet* const shards_;
  CommitLog* const log_;
  const Catalog* const catalog_;
  Sessions* const sessions_;
  std::atomic<size_t> sweeping_{0};  // Executors whose sweep goes on.
  std::atomic<int64_t> now_ms_{0};   // Of the last Tick.
  std::atomic<bool> stopped_{false};
};

}  // namespace lodestone::server
