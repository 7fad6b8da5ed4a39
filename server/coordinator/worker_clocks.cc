#include "server/coordinator/worker_clocks.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace lodestone::server {
namespace {

constexpr size_t kLinesMax = 16;  // Workers named in one message.

bool TakesSteps(const MemberTable& members, const MemberPlace& worker, bool training = false) {
  if (!members.Alive(worker)) return false;
  if (training && worker.progress.phase() < v1::PHASE_TRAINING) return false;
  return worker.silent || worker.progress.phase() < v1::PHASE_WAITING;
}

// What the worker has reached for certain.
Clock ClockOf(const MemberPlace& worker) { return worker.silent ? 0 : worker.progress.clock(); }

// The indices that no worker has ever had.
std::vector<uint32_t> NeverJoined(const MemberTable& members) {
  std::vector<uint32_t> indices;
  for (const MemberPlace& worker : members.workers()) {
    if (worker.incarnation == 0) indices.push_back(worker.index);
  }
  return indices;
}

}  // namespace

LowestClocks LowestClocksOf(const MemberTable& members, bool training) {
  LowestClocks clocks;
  for (const MemberPlace& worker : members.workers()) {
    if (!TakesSteps(members, worker, training)) continue;
    const Clock clock = ClockOf(worker);
    if (clock > clocks.newest || clocks.newest_holder == 0) {
      clocks.newest_of_others = clocks.newest;
      clocks.newest = clock;
      clocks.newest_holder = worker.incarnation;
    } else {
      clocks.newest_of_others = std::max(clocks.newest_of_others, clock);
    }
    if (clock < clocks.lowest) {
      clocks.lowest_of_others = clocks.lowest;
      clocks.lowest = clock;
      clocks.holder = worker.incarnation;
    } else {
      clocks.lowest_of_others = std::min(clocks.lowest_of_others, clock);
    }
  }
  // No worker is beyond the start while one has yet to come: its part of the data is its own.
  if (!training && !NeverJoined(members).empty()) clocks = {.holder = 0, .lowest = 0, .lowest_of_others = 0};
  return clocks;
}

absl::Status CheckNewestKnown(const MemberTable& members, Incarnation asker) {
  for (const MemberPlace& worker : members.workers()) {
    if (worker.incarnation == asker || !worker.silent || !members.Alive(worker)) continue;
    return absl::UnavailableError(absl::StrCat("where to begin is not known yet: ", members.Describe(worker), " was ",
                                               members.LastHeard(worker)));
  }
  return absl::OkStatus();
}

std::vector<std::string> WorkersBehind(const MemberTable& members, Incarnation asker, Clock clock, bool training) {
  std::vector<std::string> lines;
  size_t more = 0;
  for (const MemberPlace& worker : members.workers()) {
    if (worker.incarnation == asker || !TakesSteps(members, worker, training) || ClockOf(worker) >= clock) continue;
    if (lines.size() >= kLinesMax) {
      ++more;
      continue;
    }
    const std::string is = worker.silent ? " was " : absl::StrCat(" is at clock ", worker.progress.clock(), ", ");
    lines.push_back(absl::StrCat(members.Describe(worker), is, members.LastHeard(worker)));
  }
  for (const uint32_t index : clock > 0 && !training ? NeverJoined(members) : std::vector<uint32_t>()) {
    if (lines.size() >= kLinesMax) {
      ++more;
      continue;
    }
    lines.push_back(absl::StrCat("worker ", index, " has not joined"));
  }
  if (more > 0) lines.push_back(absl::StrCat("and ", more, " more"));
  return lines;
}

std::vector<v1::WaitTarget> ClockTargets(const MemberTable& members, Incarnation asker, Clock clock, bool training) {
  std::vector<v1::WaitTarget> targets;
  for (const MemberPlace& worker : members.workers()) {
    const bool behind = worker.incarnation == 0 ? clock > 0 && !training
                                                : TakesSteps(members, worker, training) && ClockOf(worker) < clock;
    if ((asker != 0 && worker.incarnation == asker) || !behind || targets.size() >= kLinesMax) continue;
    v1::WaitTarget& target = targets.emplace_back();
    target.set_kind(v1::WaitTarget::WORKER);
    target.set_index(worker.index);
    target.set_clock(clock);
  }
  return targets;
}

std::vector<std::string> UntrainedWorkers(const MemberTable& members, Incarnation asker) {
  std::vector<std::string> lines;
  size_t more = 0;
  for (const MemberPlace& worker : members.workers()) {
    if (worker.incarnation == 0 || worker.incarnation == asker || TakesSteps(members, worker)) continue;
    const v1::WorkerProgress& progress = worker.progress;
    const bool never_told = progress.samples_total() == 0 && progress.phase() < v1::PHASE_TRAINING && !worker.silent;
    if ((progress.samples() >= progress.samples_total() && !never_told) || progress.stopped_early()) continue;
    if (lines.size() >= kLinesMax) {
      ++more;
      continue;
    }
    const std::string trained = never_told
                                    ? "none of its samples"
                                    : absl::StrCat(progress.samples(), " of ", progress.samples_total(), " samples");
    lines.push_back(absl::StrCat(members.Describe(worker), " trained ", trained, ", ", members.LastHeard(worker)));
  }
  if (more > 0) lines.push_back(absl::StrCat("and ", more, " more"));
  return lines;
}

}  // namespace lodestone::server
