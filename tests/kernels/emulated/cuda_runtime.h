// Enough of CUDA's runtime to run kernels/*.cu, as they are, on a CPU: the compiler finds this file for
// <cuda_runtime.h>.
//
// A block's threads are fibers, which take turns where a kernel waits for others (at barriers, and at exchanges between
// a warp's lanes), in an order that a seed shuffles. So a kernel whose result depends on the order of its threads,
// reads shared memory before it was written, or does not bring all threads to a barrier, shows it.
//
// Device memory and the host's are apart (address_spaces.h): a kernel that is given a host pointer, and a host that
// touches device memory, end the process; copies in a wrong direction fail. Streams do everything as late as they may
// (streams.h): what does not wait for what it needs finds NaN.
//
// Thread safety: as CUDA's, for any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/kernels/emulated/kernel_arguments.h"

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(threads)
#define LODESTONE_DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(emulated::DynamicShared())
#define CUDART_VERSION 13000
#define __CUDA_ARCH_LIST__ 750, 900

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorIllegalAddress = 700,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
using cudaStream_t = struct EmulatedStream*;
using cudaEvent_t = struct EmulatedEvent*;
inline constexpr unsigned cudaStreamNonBlocking = 1, cudaHostAllocDefault = 0, cudaEventDisableTiming = 2;
struct cudaDeviceProp {
  char name[256];
  int major, minor;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  explicit dim3(unsigned x) : x(x) {}
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

namespace emulated {
// Queues the thread function for every thread of the grid. Ends the process if one of the pointers, which its arguments
// are or have, is neither null nor of device memory.
cudaError_t Launch(const cudaLaunchConfig_t& config, const std::vector<const void*>& pointers,
                   std::function<void()> thread);
// Queues what a library does with arrays, which must be device memory.
struct DeviceArray {
  const void* data;
  size_t bytes;
};
cudaError_t Start(cudaStream_t stream, const std::vector<DeviceArray>& arrays, std::function<void()> work);

// For kernels.
void* DynamicShared();
// Returns once all of the block's threads, or all of the warp's, have called it.
void AwaitBlock();
void AwaitWarp();
// Where lanes leave 8 bytes for others of their warp: one place for each lane, of two sets that take turns.
void* ExchangePlace(unsigned lane, bool odd);
bool NextExchangeIsOdd();

// For tests: from now on the calls of that many-th and later CUDA functions that can fail return `error`; cudaSuccess:
// none does. A synchronisation that fails forgets all that is queued.
void FailFrom(int call, cudaError_t error);
// From now on there are so many devices, of this compute capability.
void SetDevices(int count, int major, int minor);
}  // namespace emulated

extern dim3 threadIdx, blockIdx, blockDim, gridDim;

template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  // By value, as they are at the call.
  std::tuple<std::decay_t<Parameters>...> values(std::forward<Arguments>(arguments)...);
  std::vector<const void*> pointers;
  const auto add = [&pointers](const void* pointer) { pointers.push_back(pointer); };
  std::apply([&add](const auto&... value) { (emulated::ForEachPointer(value, add), ...); }, values);
  return emulated::Launch(*config, pointers, [kernel, values] { std::apply(kernel, values); });
}

inline void __syncthreads() { emulated::AwaitBlock(); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, unsigned other) {
  static_assert(sizeof(T) <= 8);
  const unsigned lane = threadIdx.x % 32;
  const bool odd = emulated::NextExchangeIsOdd();
  std::memcpy(emulated::ExchangePlace(lane, odd), &value, sizeof value);
  emulated::AwaitWarp();
  std::memcpy(&value, emulated::ExchangePlace(lane ^ other, odd), sizeof value);
  return value;
}

inline float atomicAdd(float* to, float value) { return std::exchange(*to, *to + value); }
using std::isfinite;
using std::isnan;

cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t error);
const char* cudaGetErrorName(cudaError_t error);
cudaError_t cudaMalloc(void** memory, size_t bytes);
cudaError_t cudaFree(void* memory);
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned flags);
cudaError_t cudaFreeHost(void* memory);
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventDestroy(cudaEvent_t event);
