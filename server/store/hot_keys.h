// The keys of a ps's shards that come much more often than others, found in a sample of one in kSampledEvery keys that
// are pushed and pulled.
//
// Count is meant for the hot path: for most calls it is a subtraction. The distance to the next sampled key is drawn at
// random, so that no order of the keys of a batch hides or favours one.
//
// Thread-safe, but for Count and Measure of a shard, which belong to its executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/byte_view.h"
#include "common/base/mutex.h"
#include "common/base/types.h"
#include "proto/admin.pb.h"
#include "server/store/key_sketch.h"

namespace lodestone::server {

class HotKeys {
 public:
  // With more than limits::kShardLoadsMax shards nothing is sampled.
  explicit HotKeys(uint32_t shards);

  // `count` keys of a table come to a shard: unaligned, as they lie in a message.
  void Count(ShardId shard, TableId table, ByteView keys, size_t count) {
    Sampler& sampler = samplers_[shard];
    if (count <= sampler.next) {
      sampler.next -= static_cast<uint32_t>(count);
      return;
    }
    Sample(&sampler, table, keys, count);
  }

  // Judges what has come since the last judgement, if that is long enough ago and was enough. To be called
  // about once a second. If the last call for this shard is more than kWindowMaxMs ago, as another ps had it since, the
  // window starts empty.
  void Measure(ShardId shard, int64_t now_ms);
  // Forgets what was judged of all other shards. `owned`: ascending.
  void Keep(std::span<const ShardId> owned);

  // Adds the hot keys of all shards, the most frequent first, at most limits::kHotKeysMax; `name_of` a table, empty: it
  // is not known.
  void FillStatus(const std::function<std::string(TableId)>& name_of, v1::StatusResponse* status) const;

 private:
  static constexpr uint32_t kSampledEvery = 512;    // In the mean.
  static constexpr int64_t kWindowMs = 10'000;      // That a judgement is of, at least,
  static constexpr uint64_t kSamplesMin = 200;      // and of so many samples.
  static constexpr int64_t kWindowMaxMs = 120'000;  // After which fewer say that nothing is hot.
  static constexpr double kShareMin = 0.1;          // Of a shard's keys, for a key to be hot.

  struct alignas(64) Sampler {
    uint32_t next = 0;                  // Keys before the next that is sampled.
    uint32_t random = 0;                // State of the generator; never 0.
    int64_t begin_ms = 0;               // Of the window; 0: it has not begun.
    int64_t measured_ms = 0;            // When Measure was called last.
    std::unique_ptr<KeySketch> sketch;  // Made when the first key is sampled.
  };
  struct Hot {
    TableId table = 0;
    v1::HotKey key;  // But for the table's name.
  };

  void Sample(Sampler* sampler, TableId table, ByteView keys, size_t count) const;

  const bool samples_;
  std::vector<Sampler> samplers_;  // By shard; owned by the executors.

  mutable Mutex mu_;
  std::vector<std::vector<Hot>> hot_ ABSL_GUARDED_BY(mu_);  // By shard, as judged last.
};

}  // namespace lodestone::server
