#include "server/shard/spread.h"

#include <time.h>

#include <iterator>
#include <span>
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

void SubmitAll(std::span<Share> shares) {
  for (Share& share : shares) share.executor->SubmitAndHelp(std::move(share.run), share.order);
}

}  // namespace

void Spread(std::vector<Share> shares, bool (*idle)()) {
  // The last group stays here, and those that are handed over begin before it runs.
  std::vector<size_t> ends;  // Of the groups before it.
  size_t rows = 0;
  for (size_t i = 0; i + 1 < shares.size(); ++i) {
    rows += shares[i].rows;
    if (rows < kGroupRowsMin) continue;
    ends.push_back(i + 1);
    rows = 0;
  }
  size_t begin = 0;
  if (!ends.empty() && idle()) {
    for (const size_t end : ends) {
      Executor* const first = shares[begin].executor;
      const Executor::Order order = shares[begin].order;
      first->SubmitToThread(
          [group = std::vector<Share>(std::make_move_iterator(shares.begin() + begin),
                                      std::make_move_iterator(shares.begin() + end))]() mutable {
            group[0].run();
            SubmitAll(std::span(group).subspan(1));
          },
          order);
      begin = end;
    }
  }
  SubmitAll(std::span(shares).subspan(begin));
}

bool HasIdled() {
  thread_local int64_t wall_ns = 0, cpu_ns = 0;
  const int64_t wall_now_ns = NowNs(), cpu_now_ns = ThreadCpuNs();
  const int64_t passed_ns = wall_now_ns - std::exchange(wall_ns, wall_now_ns);
  const int64_t idle_ns = passed_ns - (cpu_now_ns - std::exchange(cpu_ns, cpu_now_ns));
  return static_cast<double>(idle_ns) > kIdleShareMin * static_cast<double>(passed_ns);
}

}  // namespace lodestone::server
