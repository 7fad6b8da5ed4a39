#include "common/base/time_source.h"

#include <time.h>

#include "common/base/simulation.h"

namespace lodestone {

int64_t SteadyTime::NowMs() const {
  if (const Simulation* const simulation = Simulation::Current(); simulation != nullptr) return simulation->NowMs();
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

}  // namespace lodestone
