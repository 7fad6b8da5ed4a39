// The loads of a ps's shards: the bytes that each holds, and the pushes and pulls that come to it, over the last
// seconds.
//
// Counting is meant for the hot path: on a shard's executor it is an addition in a cache line that no other thread
// writes to. Pulls of blocks, which any thread may answer, are counted beside it, by atomic additions in a line of
// their own.
//
// Thread-safe, but for what counts on a shard's executor, which is its.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"

namespace lodestone::server {

class ShardLoads {
 public:
  explicit ShardLoads(uint32_t shards) : counters_(std::make_unique<Counters[]>(shards)), windows_(shards) {}

  // A push has a part for the shard; and a pull, of its rows. On the shard's executor.
  void CountPush(ShardId shard, uint64_t payload_bytes) {
    Add(1, &counters_[shard].pushes);
    Add(payload_bytes, &counters_[shard].push_bytes);
  }
  // For how long the executor applied a push to the shard.
  void CountPushTime(ShardId shard, int64_t ns) { Add(static_cast<uint64_t>(ns), &counters_[shard].push_ns); }
  void CountPull(ShardId shard, uint64_t payload_bytes) {
    Add(1, &counters_[shard].pulls);
    Add(payload_bytes, &counters_[shard].pull_bytes);
  }
  // The same of a pull of its blocks, on any thread.
  void CountBlockPull(ShardId shard, uint64_t payload_bytes) {
    counters_[shard].block_pulls.fetch_add(1, std::memory_order_relaxed);
    counters_[shard].block_pull_bytes.fetch_add(payload_bytes, std::memory_order_relaxed);
  }
  // What the shard's tables take now.
  void SetBytes(ShardId shard, uint64_t bytes) { counters_[shard].bytes.store(bytes, std::memory_order_relaxed); }

  // Measures rates; `owned`, ascending, are the shards that this ps owns. About once a second.
  void Sample(int64_t now_ms, std::span<const ShardId> owned);
  // Adds the shards that have been owned for a whole window.
  void FillStatus(v1::StatusResponse* status) const;

 private:
  static constexpr int64_t kWindowMs = 5000;

  struct alignas(64) Counters {
    // Written by the executor.
    std::atomic<uint64_t> pushes{0}, push_bytes{0}, push_ns{0}, pulls{0}, pull_bytes{0}, bytes{0};
    // Written by any thread.
    alignas(64) std::atomic<uint64_t> block_pulls{0};
    std::atomic<uint64_t> block_pull_bytes{0};
  };
  struct Counted {
    uint64_t pushes = 0, push_bytes = 0, push_ns = 0, pulls = 0, pull_bytes = 0;
  };
  // The stretch of time that rates are being measured over, and those of the one before.
  struct Window {
    int64_t begin_ms = 0;
    Counted begin;
    bool owned = false;     // As the last sample found.
    bool measured = false;  // `rates` are of a whole window.
    v1::ShardLoad rates;
  };

  static void Add(uint64_t more, std::atomic<uint64_t>* counter) {
    counter->store(counter->load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  Counted CountedOf(ShardId shard) const;

  const std::unique_ptr<Counters[]> counters_;  // By shard.

  mutable Mutex mu_;
  std::vector<Window> windows_ ABSL_GUARDED_BY(mu_);  // By shard.
};

}  // namespace lodestone::server
