// Kernel launches for the .cu files.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "kernels/cuda_backend.h"

// tests/kernels/emulated has these for a CPU.
#ifndef LODESTONE_DYNAMIC_SHARED
#define LODESTONE_DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#endif

namespace lodestone::kernels {

constexpr unsigned kWarp = 32;
constexpr unsigned kBlock = 256;          // Threads of a block, unless an operation says otherwise.
constexpr size_t kBlocksMax = 1 << 20;    // A grid's; kernels go on with what is beyond. CUDA's own limit is 2^31 - 1.
constexpr size_t kSharedMax = 48 * 1024;  // Bytes of shared memory that every device gives a block unasked.

struct Grid {
  size_t blocks = 0;  // Nothing is started if it is 0.
  unsigned threads = kBlock;
  size_t shared_bytes = 0;
};

// As many blocks as give each of `n` items a thread, or each thread several.
inline Grid GridFor(size_t n, unsigned threads = kBlock) {
  return {std::min(kBlocksMax, n / threads + (n % threads != 0)), threads, 0};
}

// Queues a kernel to compute. The arguments must be convertible to the kernel's parameters.
template <typename... Parameters, typename... Arguments>
void Launch(CudaBackend* backend, const char* operation, std::initializer_list<size_t> shape, const Grid& grid,
            void (*kernel)(Parameters...), Arguments... arguments) {
  if (grid.blocks == 0 || !backend->Ready()) return;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(grid.blocks));
  config.blockDim = dim3(grid.threads);
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = backend->stream(Queue::kCompute);
  backend->Started(operation, shape, cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

// The calling thread's number in its grid, and how many there are.
__device__ inline size_t ThreadIndex() { return static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline size_t ThreadCount() { return static_cast<size_t>(gridDim.x) * blockDim.x; }

// body(i) for each i < n.
template <typename Index, typename Body>
__global__ void __launch_bounds__(kBlock) ForEachKernel(size_t n, Body body) {
  for (size_t i = ThreadIndex(); i < n; i += ThreadCount()) body(static_cast<Index>(i));
}

// Calls body(i) for each i < n on the device. The index is of 32 bits where they are enough, for the sake of divisions.
template <typename Body>
void ForEach(CudaBackend* backend, const char* operation, std::initializer_list<size_t> shape, size_t n,
             const Body& body) {
  if (n <= UINT32_MAX) {
    Launch(backend, operation, shape, GridFor(n), ForEachKernel<uint32_t, Body>, n, body);
  } else {
    Launch(backend, operation, shape, GridFor(n), ForEachKernel<uint64_t, Body>, n, body);
  }
}

}  // namespace lodestone::kernels
