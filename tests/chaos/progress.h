// How far all clients of a chaos run have come, and how long they were held up.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/mutex.h"
#include "common/base/time_source.h"
#include "common/base/types.h"

namespace lodestone::chaos {

class Progress {
 public:
  int64_t NowMs() const { return time_.NowMs(); }

  // A push that was sent at `sent_ms` was acknowledged on these shards.
  void Acknowledged(const std::vector<ShardId>& shards, int64_t sent_ms);

  uint64_t acknowledged() const;
  // When the last one was.
  int64_t last_ms() const;

  // Pauses between acknowledgements are measured from Begin to End.
  void Begin();
  void End();
  int64_t pause_ms_max() const;

  // Waits for a push that is sent from now on to be acknowledged on each of these shards. Ends an earlier watch.
  void Watch(const std::vector<ShardId>& shards);
  // When the last of them was; nullopt before that.
  std::optional<int64_t> seen_ms() const;
  // Acknowledged pushes, of all clients, up to then; nullopt before that.
  std::optional<uint64_t> seen_pushes() const;
  // From the last acknowledgement on any of them before the watch began to seen_ms(); nullopt before that, or if there
  // was none.
  std::optional<int64_t> outage_ms() const;
  // Those of them that are waited for.
  std::vector<ShardId> missing() const;

 private:
  // When the last push on it was acknowledged; 0: none was.
  int64_t* AcknowledgedMs(ShardId shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NotePause(int64_t now_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SteadyTime time_{};

  mutable Mutex mu_;
  uint64_t acknowledged_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t last_ms_ ABSL_GUARDED_BY(mu_) = 0;
  bool measuring_ ABSL_GUARDED_BY(mu_) = false;
  int64_t pause_ms_max_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t watched_ms_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<int64_t> acknowledged_ms_ ABSL_GUARDED_BY(mu_);  // AcknowledgedMs.
  int64_t before_ms_ ABSL_GUARDED_BY(mu_) = 0;                 // The last one on a watched shard before the watch.
  std::vector<ShardId> missing_ ABSL_GUARDED_BY(mu_);
  int64_t seen_ms_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t seen_pushes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lodestone::chaos
