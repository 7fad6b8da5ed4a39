// The two address spaces: device memory, which the host cannot touch, and pinned host memory.
//
// Device memory lies in one region of addresses that is closed (PROT_NONE) but while kernels run: what the host reads
// or writes there ends the process, with a line that says so. Copies reach it by a second mapping of the same memory.
// Memory of either kind has exactly the size that was asked for and is filled with NaN; AddressSanitizer sees what is
// out of bounds, and without it a write behind device memory is found when it is given back.
//
// Not thread-safe: for the thread that holds the runtime's lock.
#pragma once

#include <cstddef>

namespace emulated {

// Device memory, on a boundary of 256 bytes. Null if there is no room.
void* TakeDevice(size_t bytes);
// False if it is not the beginning of memory that was taken.
bool GiveBackDevice(void* memory);
// Pinned host memory, on a boundary of 256 bytes.
void* TakePinned(size_t bytes);
bool GiveBackPinned(void* memory);

// Whether all memory of either kind has been given back.
bool NothingIsTaken();

// Whether all of it is within one piece of device memory.
bool IsDevice(const void* memory, size_t bytes);
// Whether none of it is device memory, and all of it is within one piece of pinned memory if it begins there.
bool IsHost(const void* memory, size_t bytes);
bool IsPinned(const void* memory);
bool Overlap(const void* a, size_t bytes_a, const void* b, size_t bytes_b);

// The time in which device memory is open, to kernels. One at a time.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

// Of device or host memory, for what is not a kernel.
void Copy(void* to, const void* from, size_t bytes);
void Set(void* memory, int value, size_t bytes);
// Fills it with NaN.
void Poison(void* memory, size_t bytes);

// Writes the line and ends the process.
[[noreturn]] void EndForMistake(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace emulated
