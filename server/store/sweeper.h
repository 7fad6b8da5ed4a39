// The periodic removal of what has outlived its time: idle sessions, and rows past their table's TTL.
//
// Thread-safe. All pointers must outlive the executors.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/types.h"

namespace lodestone::server {

class Catalog;
class CommitLog;
class ServingGate;
class Sessions;
class ShardSet;

class Sweeper {
 public:
  Sweeper(const ServingGate* gate, ShardSet* shards, CommitLog* log, const Catalog* catalog, Sessions* sessions)
      : gate_(gate), shards_(shards), log_(log), catalog_(catalog), sessions_(sessions) {}

  // About once a second. Does nothing before the gate opens. Rows go in updates of their own, on the executors.
  void Tick(int64_t now_ms);

 private:
  void Sweep(ShardId shard, const std::vector<Incarnation>& forgotten, int64_t now_ms);

  const ServingGate* const gate_;
  ShardSet* const shards_;
  CommitLog* const log_;
  const Catalog* const catalog_;
  Sessions* const sessions_;
};

}  // namespace lodestone::server
