#include "server/replication/copy_pace.h"

#include <algorithm>

#include "server/replication/follow_stream.h"

namespace lodestone::server {
namespace {

constexpr double kBurstSeconds = 0.05;
constexpr int64_t kIdleMs = 200;      // Without an update: there is nobody to go slowly for.
constexpr int64_t kLookEveryMs = 20;  // At whether the stream has ended.

}  // namespace

CopyPace::CopyPace(uint64_t bytes_per_second)
    : tokens_(static_cast<double>(bytes_per_second), static_cast<double>(bytes_per_second) * kBurstSeconds,
              time_.NowMs()) {}

bool CopyPace::Await(const FollowStream& stream, uint64_t bytes, uint64_t hurry) {
  for (;;) {
    if (stream.ended()) return false;
    const int64_t now_ms = time_.NowMs();
    if (now_ms - updated_ms_.load(std::memory_order_relaxed) > kIdleMs) return true;
    int64_t debt_ms = 0;
    {
      MutexLock lock(&mu_);
      debt_ms = tokens_.DebtMs(now_ms);
      if (debt_ms == 0) {
        tokens_.Take(static_cast<double>(bytes) / static_cast<double>(std::max<uint64_t>(1, hurry)));
        return true;
      }
    }
    MutexLock lock(&mu_);
    paused_.WaitForMs(&mu_, std::min(debt_ms, kLookEveryMs));
  }
}

}  // namespace lodestone::server
