#include "server/wal/commit_pace.h"

#include "common/telemetry/log.h"

namespace lodestone::server {
namespace {

constexpr int64_t kLooksPerSlowCommit = 4;

}  // namespace

void CommitPace::Begin(uint32_t log, int64_t now_ns) {
  slots_[log % kSlots].since_ns.store(now_ns, std::memory_order_relaxed);
}

void CommitPace::End(uint32_t log, int64_t began_ns, int64_t now_ns) {
  slots_[log % kSlots].since_ns.store(0, std::memory_order_relaxed);
  if (now_ns - began_ns > options_.slow_ns) return NoteSlow(now_ns, now_ns - began_ns);
  if (!slow_.load(std::memory_order_relaxed) || now_ns - slow_at_ns_.load() <= options_.calm_ns) return;
  if (slow_.exchange(false)) LODESTONE_LOG(INFO, "log", "commits are fast again: the appending thread writes");
}

bool CommitPace::IsSlow(int64_t now_ns) {
  if (slow_.load(std::memory_order_relaxed)) return true;
  if (now_ns < look_at_ns_.load(std::memory_order_relaxed)) return false;
  look_at_ns_.store(now_ns + options_.slow_ns / kLooksPerSlowCommit, std::memory_order_relaxed);
  for (const Slot& slot : slots_) {
    const int64_t since_ns = slot.since_ns.load(std::memory_order_relaxed);
    if (since_ns == 0 || now_ns - since_ns <= options_.slow_ns) continue;
    NoteSlow(now_ns, now_ns - since_ns);
    return true;
  }
  return false;
}

void CommitPace::NoteSlow(int64_t now_ns, int64_t took_ns) {
  slow_at_ns_.store(now_ns);
  if (slow_.exchange(true)) return;
  LODESTONE_LOG(WARN, "log", "a commit takes long: the logs' own threads write until commits are fast again ms={}",
                took_ns / 1'000'000);
}

}  // namespace lodestone::server
