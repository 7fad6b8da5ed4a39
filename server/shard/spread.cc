#include "server/shard/spread.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "common/telemetry/histogram.h"

namespace lodestone::server {
namespace {

// Measured: a thread that serves as many calls as it can is off the CPU for a tenth of its time at most, one that
// serves a single client that waits for each answer for a quarter at least.
constexpr double kIdleShareMin = 0.2;

int64_t ThreadCpuNs() {
  timespec now;
  return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0 ? now.tv_sec * 1'000'000'000 + now.tv_nsec : 0;
}

}  // namespace

void Spread(std::vector<Share> shares, bool (*idle)()) {
  // The last one stays here, and those that are handed over begin before the others run.
  const auto is_large = [](const Share& share) { return share.rows >= kShareRowsLarge; };
  if (!shares.empty() && std::any_of(shares.begin(), shares.end() - 1, is_large) && idle()) {
    for (size_t i = 0; i + 1 < shares.size(); ++i) {
      if (!is_large(shares[i])) continue;
      shares[i].executor->SubmitToThread(std::move(shares[i].run));
      shares[i].executor = nullptr;
    }
  }
  for (Share& share : shares) {
    if (share.executor != nullptr) share.executor->Submit(std::move(share.run));
  }
}

bool HasIdled() {
  thread_local int64_t wall_ns = 0, cpu_ns = 0;
  const int64_t wall_now_ns = NowNs(), cpu_now_ns = ThreadCpuNs();
  const int64_t passed_ns = wall_now_ns - std::exchange(wall_ns, wall_now_ns);
  const int64_t idle_ns = passed_ns - (cpu_now_ns - std::exchange(cpu_ns, cpu_now_ns));
  return static_cast<double>(idle_ns) > kIdleShareMin * static_cast<double>(passed_ns);
}

}  // namespace lodestone::server
