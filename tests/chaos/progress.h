// How far all clients of a chaos run have come, and how long they were held up.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/mutex.h"
#include "common/time_source.h"

namespace lodestone::chaos {

class Progress {
 public:
  explicit Progress(uint32_t servers) : servers_(servers) {}

  int64_t NowMs() const { return time_.NowMs(); }

  // A push that was sent at `sent_ms` was acknowledged by these servers.
  void Acknowledged(const std::vector<bool>& by, int64_t sent_ms);

  uint64_t acknowledged() const;
  // When the last one was.
  int64_t last_ms() const;

  // Pauses between acknowledgements are measured from Begin to End.
  void Begin();
  void End();
  int64_t pause_ms_max() const;

  // Waits for each of `servers` to acknowledge a push that was sent from now on. Ends an earlier watch.
  void Watch(const std::vector<uint32_t>& servers);
  // When the last of them did; nullopt before that.
  std::optional<int64_t> seen_ms() const;
  // Those of them that have not.
  std::vector<uint32_t> missing() const;

 private:
  void NotePause(int64_t now_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint32_t servers_;
  const SteadyTime time_;

  mutable Mutex mu_;
  uint64_t acknowledged_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t last_ms_ ABSL_GUARDED_BY(mu_) = 0;
  bool measuring_ ABSL_GUARDED_BY(mu_) = false;
  int64_t pause_ms_max_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t watched_ms_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint32_t> missing_ ABSL_GUARDED_BY(mu_);
  int64_t seen_ms_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace lodestone::chaos
