// The functions of the runtime: what they check, and which of them fail; see cuda_runtime.h.
#include <cuda_runtime.h>

#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "tests/kernels/emulated/address_spaces.h"
#include "tests/kernels/emulated/grid.h"
#include "tests/kernels/emulated/streams.h"

namespace emulated {
namespace {

std::mutex mu;  // Guards everything. A thread that waits for a stream holds it while it runs the stream's work.

int calls_left = 0;
cudaError_t failure = cudaSuccess;

struct {
  int count, major, minor;
} devices = {1, 9, 0};

// What a call that can fail returns.
cudaError_t Outcome() {
  if (failure == cudaSuccess) return cudaSuccess;
  if (calls_left > 0) --calls_left;
  return calls_left > 0 ? cudaSuccess : failure;
}

// Reports an argument, on the standard error output too, since the message of the error says little.
cudaError_t Invalid(const char* what) {
  std::fprintf(stderr, "emulated CUDA: %s\n", what);
  return cudaErrorInvalidValue;
}

cudaError_t QueueItem(cudaStream_t stream, EmulatedStream::Item item) {
  if (FindStream(stream) == nullptr) return Invalid("there is no such stream");
  Queue(stream, std::move(item));
  return cudaSuccess;
}

cudaError_t Take(void** memory, size_t bytes, void* (*take)(size_t bytes)) {
  const cudaError_t outcome = Outcome();
  if (outcome != cudaSuccess) return outcome;
  *memory = take(bytes);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

// Waits for everything first, as CUDA does, so that memory may be given back that queued work uses.
cudaError_t GiveBack(void* memory, bool (*give_back)(void* memory)) {
  if (memory == nullptr) return cudaSuccess;
  RunAll();
  return give_back(memory) ? cudaSuccess : Invalid("memory is given back that was never taken, or not so");
}

cudaError_t QueueCopy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const bool to_device = kind != cudaMemcpyDeviceToHost, from_device = kind != cudaMemcpyHostToDevice;
  if (!(to_device ? IsDevice(to, bytes) : IsHost(to, bytes))) {
    return Invalid(to_device ? "a copy to what is not device memory, or not all of it"
                             : "a copy to what is not host memory, or not all of it");
  }
  if (!(from_device ? IsDevice(from, bytes) : IsHost(from, bytes))) {
    return Invalid(from_device ? "a copy from what is not device memory, or not all of it"
                               : "a copy from what is not host memory, or not all of it");
  }
  if (Overlap(to, bytes, from, bytes)) return Invalid("a copy to where it reads");
  if (from_device || IsPinned(from)) {
    return QueueItem(
        stream,
        {.run = [=] { Copy(to, from, bytes); }, .to = to, .from_pinned = from_device ? nullptr : from, .bytes = bytes});
  }
  // What is not pinned is read before the call returns.
  const auto* const first = static_cast<const char*>(from);
  return QueueItem(
      stream,
      {.run = [to, staged = std::vector<char>(first, first + bytes)] { Copy(to, staged.data(), staged.size()); },
       .to = to,
       .bytes = bytes});
}

}  // namespace

cudaError_t Launch(const cudaLaunchConfig_t& config, const std::vector<const void*>& pointers,
                   std::function<void()> thread) {
  const std::lock_guard<std::mutex> lock(mu);
  const cudaError_t outcome = Outcome();
  if (outcome != cudaSuccess) return outcome;
  if (!IsPossible(config)) return cudaErrorInvalidConfiguration;
  for (const void* pointer : pointers) {
    if (pointer != nullptr && !IsDevice(pointer, 0)) {
      EndForMistake("a kernel is started with %p, which is no device memory%s", pointer,
                    IsPinned(pointer) ? " but pinned host memory" : "");
    }
  }
  return QueueItem(config.stream, {.run = [config, thread = std::move(thread)] {
                     const DeviceAccess access;
                     RunGrid(config, thread);
                   }});
}

cudaError_t Start(cudaStream_t stream, const std::vector<DeviceArray>& arrays, std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(mu);
  for (const DeviceArray& array : arrays) {
    if (!IsDevice(array.data, array.bytes)) {
      EndForMistake("%zu bytes at %p are not, or not all, device memory", array.bytes, array.data);
    }
  }
  return QueueItem(stream, {.run = [work = std::move(work)] {
                     const DeviceAccess access;
                     work();
                   }});
}

void FailFrom(int call, cudaError_t error) {
  const std::lock_guard<std::mutex> lock(mu);
  calls_left = call;
  failure = error;
}

void SetDevices(int count, int major, int minor) { devices = {count, major, minor}; }

}  // namespace emulated

cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulated::devices.count;
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::snprintf(properties->name, sizeof properties->name, "emulated");
  properties->major = emulated::devices.major;
  properties->minor = emulated::devices.minor;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device >= 0 && device < emulated::devices.count ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    default:
      return "an error";
  }
}
const char* cudaGetErrorName(cudaError_t) { return "emulated"; }

using emulated::Invalid;
using emulated::mu;
using emulated::Outcome;

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mu);
  return emulated::Take(memory, bytes, emulated::TakeDevice);
}
cudaError_t cudaFree(void* memory) {
  const std::lock_guard<std::mutex> lock(mu);
  return emulated::GiveBack(memory, emulated::GiveBackDevice);
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  const std::lock_guard<std::mutex> lock(mu);
  return emulated::Take(memory, bytes, emulated::TakePinned);
}
cudaError_t cudaFreeHost(void* memory) {
  const std::lock_guard<std::mutex> lock(mu);
  return emulated::GiveBack(memory, emulated::GiveBackPinned);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mu);
  const cudaError_t outcome = Outcome();
  return outcome != cudaSuccess ? outcome : emulated::QueueCopy(to, from, bytes, kind, stream);
}
cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mu);
  const cudaError_t outcome = Outcome();
  if (outcome != cudaSuccess) return outcome;
  if (!emulated::IsDevice(memory, bytes)) return Invalid("what is to be set is not, or not all, device memory");
  return emulated::QueueItem(stream,
                             {.run = [=] { emulated::Set(memory, value, bytes); }, .to = memory, .bytes = bytes});
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const std::lock_guard<std::mutex> lock(mu);
  const cudaError_t outcome = Outcome();
  *stream = outcome != cudaSuccess ? nullptr : emulated::NewStream().get();
  return outcome;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mu);
  if (emulated::FindStream(stream) == nullptr) return Invalid("there is no such stream");
  emulated::EndStream(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mu);
  const cudaError_t outcome = Outcome();
  if (outcome != cudaSuccess) {
    emulated::DropAll();
  } else if (stream != nullptr) {
    const auto known = emulated::FindStream(stream);
    if (known == nullptr) return Invalid("there is no such stream");
    emulated::RunTo({known, known->queued()});
  }
  return outcome;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard<std::mutex> lock(mu);
  const cudaError_t outcome = Outcome();
  if (outcome != cudaSuccess || event->stream == nullptr) return outcome;
  return emulated::QueueItem(stream, {.awaited = *event});
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const std::lock_guard<std::mutex> lock(mu);
  const cudaError_t outcome = Outcome();
  *event = outcome != cudaSuccess ? nullptr : new EmulatedEvent;
  return outcome;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard<std::mutex> lock(mu);
  const cudaError_t outcome = Outcome();
  if (outcome != cudaSuccess) return outcome;
  const auto known = emulated::FindStream(stream);
  if (known == nullptr) return Invalid("there is no such stream");
  *event = {known, known->queued()};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
