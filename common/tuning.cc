#include "common/tuning.h"

#include <malloc.h>

#include "absl/synchronization/mutex.h"

namespace lodestone {

void TuneLibraries() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 2'000'000'000);
  mallopt(M_TOP_PAD, 16 << 20);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace lodestone
