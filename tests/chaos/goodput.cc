#include "tests/chaos/goodput.h"

#include <cstddef>

namespace lodestone::chaos {

GoodputShares ComputeShares(const GoodputPeriod& before, const GoodputPeriod& with_fault, const GoodputPeriod& after) {
  const double rate = (before.rate() + after.rate()) / 2;
  const double expected = rate * with_fault.seconds;
  const double pushes = static_cast<double>(with_fault.pushes);
  const double in_recovery = static_cast<double>(with_fault.recovery_pushes);
  const double rest_seconds = with_fault.seconds - with_fault.recovery_seconds;
  return {.goodput = pushes / expected,
          .lost_in_recovery = (rate * with_fault.recovery_seconds - in_recovery) / expected,
          .lost_after = (rate * rest_seconds - (pushes - in_recovery)) / expected};
}

std::vector<GoodputShares> ComputeShares(const std::vector<GoodputPeriod>& periods) {
  std::vector<GoodputShares> shares;
  for (size_t i = 1; i + 1 < periods.size(); i += 2) {
    const bool known = periods[i].seconds > 0 && periods[i - 1].pushes + periods[i + 1].pushes > 0;
    if (known) shares.push_back(ComputeShares(periods[i - 1], periods[i], periods[i + 1]));
  }
  return shares;
}

}  // namespace lodestone::chaos
