// The threads of a kernel, as fibers; see cuda_runtime.h.
//
// Not thread-safe: for the thread that holds the runtime's lock.
#pragma once

#include <cuda_runtime.h>

#include <functional>

namespace emulated {

bool IsPossible(const cudaLaunchConfig_t& config);
// Runs the thread function for every thread of the grid. Ends the process if some wait for what cannot come.
// REQUIRES: IsPossible.
void RunGrid(const cudaLaunchConfig_t& config, const std::function<void()>& thread);

}  // namespace emulated
