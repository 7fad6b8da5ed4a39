#include "server/shard/spread.h"

#include <time.h>

#include <utility>

namespace lodestone {
namespace {

// Measured: a thread that serves as many calls as it can is idle for a tenth of its time at most, one that serves a
// single client that waits for each answer a quarter at least.
constexpr int64_t kIdleShare = 5;

int64_t NsOf(clockid_t clock) {
  timespec now;
  return clock_gettime(clock, &now) == 0 ? now.tv_sec * 1'000'000'000 + now.tv_nsec : 0;
}

}  // namespace

void Spread(std::vector<Share> shares, bool idle) {
  for (size_t i = 0; i < shares.size(); ++i) {
    Share& share = shares[i];
    if (idle && share.bytes >= kShareBytesLarge && i + 1 < shares.size()) {
      share.executor->SubmitToThread(std::move(share.run));
    } else {
      share.executor->Submit(std::move(share.run));
    }
  }
}

bool HasIdled() {
  thread_local int64_t wall_ns = 0, cpu_ns = 0;
  const int64_t wall_now_ns = NsOf(CLOCK_MONOTONIC), cpu_now_ns = NsOf(CLOCK_THREAD_CPUTIME_ID);
  const int64_t passed_ns = wall_now_ns - std::exchange(wall_ns, wall_now_ns);
  const int64_t idle_ns = passed_ns - (cpu_now_ns - std::exchange(cpu_ns, cpu_now_ns));
  return idle_ns * kIdleShare > passed_ns;
}

}  // namespace lodestone
