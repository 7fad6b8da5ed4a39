#include "worker/training/lead.h"

#include <algorithm>

namespace lodestone::worker {
namespace {

constexpr uint32_t kWaits = 0;  // The level of a worker that waits.
constexpr uint32_t kRestMax = 64;
// A mean over few pushes is not exact: so much above what is allowed is no reason to wait again.
constexpr double kToleratedShare = 0.25;
// How many decisions' worth of the delay that is allowed count as credit at most, and as debt: what was long ago does
// not.
constexpr double kCreditMax = 1;
constexpr double kDebtMax = 16;
// Others' updates in the delay of a worker that is as good as alone.
constexpr double kAloneMax = 0.1;
constexpr double kCompanyMin = 0.25;

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

bool LeadControl::HasRoom(double delay) const {
  // Without the wait a step lacks the worker's push before it, and others, which cease to wait too, have twice the time
  // to push in.
  if (level_ == kWaits) return 2 * delay + 1 <= options_.delay_max;
  return delay <= options_.delay_max && credit_ >= 0;
}

bool LeadControl::IsTooHigh(double delay) const {
  const bool least = lead_ == LeadAt(kWaits + 1);  // Below it the worker waits.
  return delay > (least ? 1 + kToleratedShare : 1) * options_.delay_max && (least || credit_ < 0);
}

void LeadControl::Rest() {
  rest_left_ = rest_;
  rest_ = std::min(2 * rest_, kRestMax);
}

void LeadControl::BeginAfter(uint64_t acknowledged, double delay_sum, double others_sum) {
  acknowledged_ = acknowledged;
  delay_sum_ = delay_sum;
  others_sum_ = others_sum;
}

bool LeadControl::Update(uint64_t acknowledged, double delay_sum, double others_sum) {
  if (options_.delay_max == 0 || acknowledged < acknowledged_ + kPushesPerDecision) return false;
  const auto pushes = static_cast<double>(acknowledged - acknowledged_);
  const double delay = (delay_sum - delay_sum_) / pushes;
  const double others = (others_sum - others_sum_) / pushes;
  acknowledged_ = acknowledged;
  delay_sum_ = delay_sum;
  others_sum_ = others_sum;
  const double allowed = options_.delay_max;
  credit_ = std::clamp(credit_ + allowed - delay, -kDebtMax * allowed, kCreditMax * allowed);
  const uint32_t level_max = 1 + 2 * std::max(options_.batches_ahead_max, options_.pushes_in_flight_max);
  // Where a bound is reached, neighbouring levels are the same.
  const Lead before = lead_;
  if (level_ == kWaits) {
    began_alone_ = others < kAloneMax;
  } else if (began_alone_ && others > kCompanyMin) {
    level_ = kWaits;
    lead_ = LeadAt(level_);
    Rest();
    return true;
  }
  if (IsTooHigh(delay)) {
    while (level_ > level_min_ && lead_ == before) lead_ = LeadAt(--level_);
    if (level_ == kWaits && lead_ != before) Rest();
  } else if (rest_left_ > 0) {
    --rest_left_;
  } else if (HasRoom(delay)) {
    while (level_ < level_max && lead_ == before) lead_ = LeadAt(++level_);
  }
  return lead_ != before;
}

}  // namespace lodestone::worker
