#include "worker/training/lead.h"

#include <algorithm>

namespace lodestone::worker {
namespace {

// What a level more adds to the delay, about: the next is tried if there is room for it.
constexpr double kDelayPerLevel = 1;

}  // namespace

LeadControl::LeadControl(uint32_t batches_ahead_max, uint32_t pushes_in_flight_max, uint32_t delay_max)
    : batches_ahead_max_(batches_ahead_max),
      pushes_in_flight_max_(std::max(1u, pushes_in_flight_max)),
      delay_max_(delay_max),
      lead_(LeadAt(0)) {
  lead_.waits = delay_max == 0;
}

Lead LeadControl::LeadAt(uint32_t level) const {
  return {.batches_ahead = std::min(batches_ahead_max_, (level + 1) / 2),
          .pushes_in_flight = std::min(pushes_in_flight_max_, 1 + level / 2)};
}

bool LeadControl::Update(uint64_t acknowledged, double delay_sum) {
  if (lead_.waits || acknowledged < acknowledged_ + kPushesPerDecision) return false;
  const double delay = (delay_sum - delay_sum_) / static_cast<double>(acknowledged - acknowledged_);
  acknowledged_ = acknowledged;
  delay_sum_ = delay_sum;
  const uint32_t level_max = 2 * std::max(batches_ahead_max_, pushes_in_flight_max_);
  // Where a bound is reached, neighbouring levels are the same.
  const Lead before = lead_;
  if (delay > delay_max_) {
    while (level_ > 0 && lead_ == before) lead_ = LeadAt(--level_);
  } else if (delay + kDelayPerLevel <= delay_max_) {
    while (level_ < level_max && lead_ == before) lead_ = LeadAt(++level_);
  }
  return lead_ != before;
}

}  // namespace lodestone::worker
