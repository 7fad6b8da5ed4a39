// The CPU as a backend: every operation runs at once, on the calling thread.
#pragma once

#include "kernels/backend.h"

namespace lodestone::kernels {

// It has no state, so that one serves all threads at once, and lives as long as the process. It never fails.
Backend* Cpu();

}  // namespace lodestone::kernels
