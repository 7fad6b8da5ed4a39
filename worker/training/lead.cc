#include "worker/training/lead.h"

#include <algorithm>

namespace lodestone::worker {
namespace {

constexpr uint32_t kWaits = 0;  // The level of a worker that waits.
// What a batch or a push more adds to the delay, about: the next is tried if there is room for it.
constexpr double kDelayPerLevel = 1;
constexpr uint32_t kRestMax = 64;
// A mean over few pushes is not exact: so much above what is allowed is no reason to go down.
constexpr double kToleratedShare = 0.25;

}  // namespace

LeadControl::LeadControl(const Options& options)
    : options_(options),
      level_min_(options.may_wait || options.delay_max == 0 ? kWaits : kWaits + 1),
      level_(level_min_),
      lead_(LeadAt(level_)) {}

Lead LeadControl::LeadAt(uint32_t level) const {
  if (level == kWaits) return {.waits = true};
  const uint32_t above = level - kWaits - 1;
  return {.batches_ahead = std::min(options_.batches_ahead_max, (above + 1) / 2),
          .pushes_in_flight = std::min(std::max(1u, options_.pushes_in_flight_max), 1 + above / 2)};
}

double LeadControl::DelayAbove(double delay) const {
  // Without the wait a step lacks the worker's push before it, and others have twice the time to push in.
  return level_ == kWaits ? 2 * delay + 1 : delay + kDelayPerLevel;
}

bool LeadControl::Update(uint64_t acknowledged, double delay_sum) {
  if (options_.delay_max == 0 || acknowledged < acknowledged_ + kPushesPerDecision) return false;
  const double delay = (delay_sum - delay_sum_) / static_cast<double>(acknowledged - acknowledged_);
  acknowledged_ = acknowledged;
  delay_sum_ = delay_sum;
  const uint32_t level_max = 1 + 2 * std::max(options_.batches_ahead_max, options_.pushes_in_flight_max);
  // Where a bound is reached, neighbouring levels are the same.
  const Lead before = lead_;
  if (delay > (1 + kToleratedShare) * options_.delay_max) {
    while (level_ > level_min_ && lead_ == before) lead_ = LeadAt(--level_);
    if (lead_ == before) return false;
    rest_left_ = rest_;
    rest_ = std::min(2 * rest_, kRestMax);
  } else if (rest_left_ > 0) {
    --rest_left_;
  } else if (DelayAbove(delay) <= options_.delay_max) {
    while (level_ < level_max && lead_ == before) lead_ = LeadAt(++level_);
  }
  return lead_ != before;
}

}  // namespace lodestone::worker
